"""Waiting for something in this event loop that nobody tells of."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Until it holds; fails when it does not in time."""
    for _ in range(int(seconds / 0.002)):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("waited in vain")
