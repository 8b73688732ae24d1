"""The application under uvicorn, from start to the last request after SIGTERM."""

import asyncio
import gc
import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from plait_server.config import ServerConfig
from plait_server.front import FrontEnd
from plait_server.health import Phase
from plait_server.http_protocol import bounded_protocol

log = logging.getLogger(__name__)

LAST_SECONDS = 2
"""For answers that are written but not yet taken by their clients."""


class DrainingServer(uvicorn.Server):
    """First signal: refuse new requests, let running ones finish within the grace time, end the rest, stop.

    Second signal: stop at once. Either way the application's shutdown runs, which ends the engine.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(uvicorn_config(app, config))
        self._server_config = config
        self._front: FrontEnd = app.state.front
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._signalled = False

    @property
    def port(self) -> int:
        """The port listened on; valid once started. Useful when the configured one is 0."""
        number: int = self.servers[0].sockets[0].getsockname()[1]
        return number

    @property
    def failed(self) -> bool:
        return self._front.health.phase is Phase.FAILED

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._tasks.append(asyncio.create_task(self._watch_engine_start()))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Signal handler. uvicorn's own would raise the signal again at the end, and the exit status would show it."""
        if self._signalled or self._loop is None:
            self.stop_at_once()
            return
        self._signalled = True
        self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        self._tasks.append(asyncio.create_task(self._drain()))

    def stop_at_once(self) -> None:
        self.config.timeout_graceful_shutdown = 0
        self.should_exit = True

    async def _drain(self) -> None:
        grace = self._server_config.grace_seconds
        running = self._front.running
        self._front.health.drain()
        log.info("shutting down: %d requests are running, up to %g seconds for them", len(running), grace)
        if not await running.wait_idle(grace):
            log.warning("grace time is over: ending %d requests", len(running))
            running.end_all()
            await running.wait_idle(LAST_SECONDS)
        self.should_exit = True

    async def _watch_engine_start(self) -> None:
        await self._front.health.settled.wait()
        if self.failed:
            log.error("the engine could not start: %s", self._front.health.failure)
            self.should_exit = True
        elif self._front.health.phase is Phase.SERVING:
            log.info("ready to serve %s", ", ".join(self._front.names))


def uvicorn_config(app: FastAPI, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        loop="uvloop",
        http=bounded_protocol(config),
        ws="none",
        lifespan="on",
        log_level=config.log_level,
        access_log=config.access_log,
        server_header=False,
        # Given in any case: else uvicorn reads an environment variable.
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=list(config.trusted_proxies),
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        timeout_keep_alive=config.keep_alive_seconds,
        timeout_graceful_shutdown=LAST_SECONDS,
    )


def keep_what_is_there() -> None:
    """Modules, routes and vocabulary stay as long as the process; collections of garbage need not look at them again.

    With 2,000 streams every full collection, which all of them wait for, takes half the time.
    """
    gc.collect()
    gc.freeze()


def run(app: FastAPI, config: ServerConfig) -> int:
    """Serves until told to stop; the exit status: 0, or 1 when the engine could not start."""
    for line in config.lines():
        log.info("server: %s", line)
    server = DrainingServer(app, config)
    keep_what_is_there()
    server.run()
    return 1 if server.failed else 0
