"""The engine's process, as whoever starts it sees it."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec

from plait_engine.config import EngineConfig


class Child:
    """Runs from the moment that this is made. ``address`` is a socket in a private folder, to be bound here."""

    def __init__(self, config: EngineConfig) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="plait-")
        self.address = f"ipc://{self.folder / 'engine.sock'}"
        command = [sys.executable, "-m", "plait_engine.process", self.address, str(os.getpid())]
        # A group of its own: Ctrl-C in a terminal goes to the whole group, and whoever started this ends it in order.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(msgspec.json.encode(config))

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> asyncio.Future[int]:
        """Will hold the exit code. A thread waits for it, so that a loop may be begun long after the child."""
        loop = asyncio.get_running_loop()
        code: asyncio.Future[int] = loop.create_future()

        def tell(number: int) -> None:
            if not code.done():
                code.set_result(number)

        def wait() -> None:
            number = self._process.wait()
            with contextlib.suppress(RuntimeError):  # The loop is gone: nobody asks any more.
                loop.call_soon_threadsafe(tell, number)

        threading.Thread(target=wait, name="engine's end", daemon=True).start()
        return code

    def kill(self) -> None:
        self._process.kill()

    def clean_up(self) -> None:
        """Once it has ended, or was killed."""
        self._process.wait()
        self._folder.cleanup()
