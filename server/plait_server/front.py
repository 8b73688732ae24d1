"""What every route works with, in one object."""

import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from plait_engine.client import EngineClient
from plait_server.auth.keys import KeyStore
from plait_server.auth.limits import Limiter
from plait_server.call import Call
from plait_server.config import ServerConfig
from plait_server.drain import Running
from plait_server.errors import ApiError
from plait_server.generation import Generation, Job
from plait_server.grammars import GrammarCheck
from plait_server.health import Health
from plait_server.metrics import Metrics
from plait_server.text.model_text import ModelText


@dataclass(kw_only=True)
class FrontEnd:
    """Made once per application and kept in ``app.state.front``."""

    config: ServerConfig
    engine: EngineClient
    text: ModelText
    metrics: Metrics = field(default_factory=Metrics)
    limiter: Limiter = field(default_factory=Limiter)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.running = Running(self.config.request_timeout_seconds)
        self.metrics.why_cancelled = self.running.why_cancelled
        self.health = Health(self.engine, self.config)
        self.grammars = GrammarCheck(self.engine, self.text.tokenizer, self.config.grammar_seconds)
        self.reply_style = self.text.reply_style(self.config.tool_format, self.config.reasoning_format)
        self.keys = KeyStore(self.config.keys, self.config.api_key)

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called; valid once the engine is ready."""
        return self.config.served_names or (self.engine.info.model,)

    def model(self, asked: str | None) -> str:
        """The name to answer with; raises 404 for a model that is not served here."""
        if asked is None:
            return self.names[0]
        if asked not in self.names:
            raise unknown_model(asked, self.names)
        return asked

    def generate(self, job: Job, call: Call) -> Generation:
        """The work for ``call``, which keeps it for the audit log."""
        call.generation = Generation(
            job=job,
            engine=self.engine,
            tokenizer=self.text.tokenizer,
            metrics=self.metrics,
            limiter=self.limiter,
            key=call.key,
        )
        return call.generation


def unknown_model(asked: str, names: tuple[str, ...]) -> ApiError:
    known = ", ".join(names)
    message = f"the model {asked[:100]!r} does not exist here; this server serves {known}"
    return ApiError(404, message, param="model", code="model_not_found")


async def front_of(request: Request) -> FrontEnd:
    """A coroutine, since the framework would run a plain function in a thread: as long as all the rest takes."""
    front = request.app.state.front
    assert isinstance(front, FrontEnd)
    return front


Front = Annotated[FrontEnd, Depends(front_of)]
