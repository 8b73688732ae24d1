"""A server process of its own, for signals: ``python -m tests.server.drain_target GRACE STEP LOAD``."""

import asyncio
import socket
import sys

from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.serve import DrainingServer
from plait_server.text.model_text import ModelText
from plait_server.text.tokenizer import TextTokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.tiny_text import byte_level_tokenizer


class Announced(DrainingServer):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self.port, flush=True)


async def made(step_seconds: float, loads: bool) -> FakeEngine:
    engine = FakeEngine(max_model_len=100_000)
    engine.step_seconds = step_seconds
    if not loads:
        engine.loaded.clear()
    return engine


def main() -> int:
    grace, step_seconds, loads = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "yes"
    engine = asyncio.run(made(step_seconds, loads))
    config = ServerConfig(port=0, grace_seconds=grace, log_level="error")
    server = Announced(create_app(config, engine, ModelText(tokenizer=TextTokenizer(byte_level_tokenizer()))), config)
    server.run()
    assert engine.shut_down, "the engine was left behind"
    print("ended", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
