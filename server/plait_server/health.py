"""Whether the engine loads, works, hangs or is gone: the one place that health, readiness and admission ask."""

import asyncio
import time
from enum import StrEnum

from plait_engine.client import EngineClient, EngineDead, EngineStats
from plait_server.config import ServerConfig
from plait_server.errors import ApiError, unavailable


class Phase(StrEnum):
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    FAILED = "failed"


class Health:
    """``phase`` moves forward only: loading, serving, draining; or failed, when the engine could not start."""

    def __init__(self, engine: EngineClient, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self._heartbeat = self._answered = time.monotonic()
        self._stuck = False
        self.phase = Phase.LOADING
        self.failure = ""
        self.settled = asyncio.Event()
        """Set when loading is over, one way or the other."""

    async def wait_engine(self) -> None:
        """Turns loading into serving, or into failed; never raises."""
        try:
            await self._engine.start()
            await self._engine.wait_ready()
        except Exception as error:
            # Whatever it is, waiting for an engine that will not come must end.
            self.phase, self.failure = Phase.FAILED, str(error) or type(error).__name__
        else:
            self._heartbeat = self._answered = time.monotonic()
            if self.phase is Phase.LOADING:
                self.phase = Phase.SERVING
        self.settled.set()

    def drain(self) -> None:
        self.phase = Phase.DRAINING

    def admit(self) -> None:
        """Raises the answer for a request that cannot be taken now. A full queue is the engine's to report."""
        if self.phase is Phase.DRAINING:
            raise unavailable("the server is shutting down; send the request to another one", "draining", 5)
        self.require_engine()

    def require_engine(self) -> None:
        """Raises unless the engine has been ready and still lives; from then on its ``info`` is valid."""
        if self.phase is Phase.LOADING:
            raise unavailable("the model is still loading; try again in a moment", "loading", 5)
        if self.phase is Phase.FAILED or not self._engine.alive:
            raise unavailable("the engine has stopped; the server must be restarted", "engine_dead", 30)

    async def watch(self) -> None:
        """Asks the engine from time to time, for as long as the application lives."""
        await self.settled.wait()
        while True:
            await self.ask(self._config.scrape_seconds)
            await asyncio.sleep(self._config.poll_seconds)

    async def ask(self, seconds: float) -> EngineStats | None:
        """The engine's figures of this moment; None when they do not come in time."""
        if self.phase in (Phase.LOADING, Phase.FAILED) or not self._engine.alive:
            return None
        try:
            async with asyncio.timeout(seconds):
                stats = await self._engine.stats()
        except (EngineDead, TimeoutError):
            return None
        self._answered = time.monotonic()
        self._heartbeat = max(self._heartbeat, self._answered - stats.heartbeat_seconds)
        self._stuck = stats.stuck
        return stats

    async def live(self) -> str | None:
        """None when alive, else what is wrong. Loading and draining are alive; so is a step that takes its time."""
        await self.ask(self._config.probe_seconds)
        return self.trouble()

    async def ready(self) -> str | None:
        """None when a new request would be served, else why not."""
        await self.ask(self._config.probe_seconds)
        return self.obstacle()

    def trouble(self) -> str | None:
        """What ``live`` says, from what is known."""
        if self.phase is Phase.FAILED:
            return f"the engine could not start: {self.failure}"
        if self.phase is Phase.LOADING:
            return None
        if not self._engine.alive:
            return "the engine has stopped"
        silence = time.monotonic() - self._heartbeat
        if silence > self._config.heartbeat_limit_seconds:
            return f"the engine has not gone round its loop for {silence:.0f} seconds"
        return None

    def obstacle(self) -> str | None:
        """What ``ready`` says, from what is known."""
        try:
            self.admit()
        except ApiError as error:
            return error.message
        if time.monotonic() - self._answered > self._config.answer_limit_seconds:
            return "the engine does not answer"
        if self._stuck:
            return "the engine is stuck: queued work makes no progress"
        return None
