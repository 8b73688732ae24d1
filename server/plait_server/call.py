"""One HTTP request as those see it who are not its route: who sent it, and what came of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends
from starlette.requests import Request
from starlette.types import Scope, Send

from plait_server.auth.keys import Key

if TYPE_CHECKING:
    from plait_server.generation import Generation


@dataclass(kw_only=True)
class Call:
    request_id: str = ""
    key: Key | None = None
    """Whose it is; None where no keys are configured, and until the guard has found it."""
    model: str | None = None
    generation: "Generation | None" = None
    """What it made the engine do."""
    reason: str | None = None
    """The code of the error that it was answered with."""
    send: Send | None = None
    """Past all layers, for what is neither the first nor the last message of an answer: no layer looks at those."""

    @property
    def tenant(self) -> str:
        return "" if self.key is None else self.key.tenant

    @property
    def max_tokens(self) -> int | None:
        """Of one answer, as far as the key allows."""
        return None if self.key is None else self.key.limits.max_tokens


def call_of(scope: Scope) -> Call:
    """The request's own; made when it is first asked for."""
    state = scope.setdefault("state", {})
    call = state.setdefault("call", Call())
    assert isinstance(call, Call)
    return call


def path_of(scope: Scope) -> str:
    """Without the root path: the path that routes are found by."""
    return str(scope["path"]).removeprefix(str(scope.get("root_path", "")))


async def call_of_request(request: Request) -> Call:
    """A coroutine, since the framework would run a plain function in a thread: as long as all the rest takes."""
    return call_of(request.scope)


Caller = Annotated[Call, Depends(call_of_request)]
