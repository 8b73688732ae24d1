"""The requests under way, and how they end when the server does."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from plait_server.errors import ApiError, unavailable


class Running:
    """Every request that generates is in here while it does. Used from one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def entry(self) -> Iterator[None]:
        """Around the work of one request, within its task. Work ended by ``end_all`` raises ``ApiError`` instead."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            if not self._ended:
                raise
            task.uncancel()
            raise cut_short() from None
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()

    async def wait_idle(self, seconds: float) -> bool:
        """Whether all were done in time."""
        try:
            async with asyncio.timeout(seconds):
                while self._tasks:  # idle may be over again before we run
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def end_all(self) -> None:
        """Cancels what still runs; each request then tells its client why, whatever its engine is doing."""
        self._ended = True
        for task in self._tasks:
            task.cancel()


def cut_short() -> ApiError:
    return unavailable("the server is shutting down and ended this request", "draining", 5)
