"""The requests under way, and how they end when the server does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plait_server.errors import ApiError, unavailable


class Running:
    """Every request that generates is in here while it does, for a limited time. Used from one event loop."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._tasks: dict[asyncio.Task[object], asyncio.Timeout] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = False

    def __len__(self) -> int:
        return len(self._tasks)

    @asynccontextmanager
    async def entry(self) -> AsyncIterator[None]:
        """Around the work of one request, within its task.

        Work that takes too long, or is ended by ``end_all``, raises ``ApiError``.
        """
        task = asyncio.current_task()
        assert task is not None
        limit = self._tasks[task] = asyncio.timeout(self._seconds)
        self._idle.clear()
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise too_slow(self._seconds or 0) from None
        except asyncio.CancelledError:
            if not self._ended:
                raise
            task.uncancel()
            raise cut_short() from None
        finally:
            del self._tasks[task]
            if not self._tasks:
                self._idle.set()

    def why_cancelled(self) -> str:
        """Of the current task, while it is being cancelled: as `plait_aborted_total` calls it."""
        if self._ended:
            return "shutdown"
        task = asyncio.current_task()
        limit = self._tasks.get(task) if task is not None else None
        until = None if limit is None else limit.when()
        late = until is not None and until <= asyncio.get_running_loop().time()
        return "time_limit" if late else "client_gone"

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


def too_slow(seconds: float) -> ApiError:
    message = f"the answer was not complete within {seconds:g} seconds; ask for fewer tokens"
    return ApiError(504, message, code="time_limit", headers={"x-should-retry": "false"})


def cut_short() -> ApiError:
    return unavailable("the server is shutting down and ended this request", "draining", 5)
