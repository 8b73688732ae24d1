"""When sessions begin: as many at a time as asked for, at a rate, or when they are due."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from plait_server.bench.session import Session

Play = Callable[[Session], Coroutine[Any, Any, None]]


async def at_a_time(sessions: Iterable[Session], play: Play, concurrency: int) -> None:
    """The next begins when one has ended."""
    waiting = iter(sessions)

    async def worker() -> None:
        for session in waiting:
            await play(session)

    await asyncio.gather(*(worker() for _ in range(concurrency)))


async def when_due(sessions: Iterable[Session], play: Play) -> None:
    """Whether or not the server keeps up."""
    started = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            await asyncio.sleep(started + (session.at or 0.0) - time.monotonic())
            tasks.create_task(play(session))


def at_a_rate(sessions: Iterable[Session], per_second: float, seed: int) -> Iterator[Session]:
    """The same sessions, arriving by chance (Poisson)."""
    chance = random.Random(f"{seed}-arrivals")
    due = 0.0
    for session in sessions:
        due += chance.expovariate(per_second)
        yield session._replace(at=due)
