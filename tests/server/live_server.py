"""The application over a real socket, in a thread of its own, so that blocking clients can be used against it."""

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import httpx

from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.front import FrontEnd
from plait_server.serve import DrainingServer
from plait_server.text.model_text import ModelText
from tests.server.fake_engine import FakeEngine

Value = TypeVar("Value")


class LiveServer:
    """``engine`` belongs to the server's event loop: change it through ``call`` while requests run."""

    def __init__(self, engine: FakeEngine, text: ModelText, config: ServerConfig | None = None) -> None:
        self.engine = engine
        self.config = config or ServerConfig(port=0, log_level="error", grace_seconds=5)
        self.app = create_app(self.config, engine, text)
        self.server = DrainingServer(self.app, self.config)
        self._thread = threading.Thread(target=self.server.run, name="live-server")

    @property
    def front(self) -> FrontEnd:
        front: FrontEnd = self.app.state.front
        return front

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        self.wait(lambda: self.server.started or not self._thread.is_alive())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.server.stop_at_once()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20)

    def call(self, function: Callable[[], Value]) -> Value:
        """Runs it in the server's event loop."""

        async def run() -> Value:
            return function()

        loop = self.server._loop
        assert loop is not None
        return asyncio.run_coroutine_threadsafe(run(), loop).result(timeout=10)

    def wait(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Until it holds; fails when it does not in time."""
        pause = threading.Event()
        for _ in range(int(seconds / 0.005)):
            if condition():
                return
            pause.wait(0.005)
        raise AssertionError("waited in vain")
