"""One stream of tokens being generated."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plait_engine.request import FinishReason, Request, TokenLogprobs
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import Position

if TYPE_CHECKING:
    from plait_engine.state.checkpoint import StepReceipt
    from plait_engine.state.prefix_cache import Reuse
    from plait_engine.state.restore import Restore

START = Position(0)


@dataclass(eq=False)
class Sequence:
    """``tokens`` is the prompt and what was generated since; ``pending`` sampled tokens are still on the device.

    ``scheduled`` counts the tokens that launched steps consume; ``state.position`` those that committed steps did.
    While nothing is in flight both are equal::

        0 ........ state.position ........ scheduled ........ length
          committed               in flight          to compute
    """

    request: Request
    index: int
    arrival: int
    """Order of arrival, kept through preemption; unique."""
    state: SequenceState
    tokens: list[int] = field(default_factory=list)
    scheduled: Position = START
    pending: int = 0
    row: int = -1
    """Row in the runner's tables while running, -1 otherwise."""
    in_flight: int = 0
    """Launched steps that name this sequence and are not committed."""
    finish: FinishReason | None = None
    preemptions: int = 0
    announced: bool = False
    """Whether a first delta was sent: what comes once per sequence comes with it."""
    seed: int = 0
    restore: "Restore | None" = None
    """What is still to be brought to its state before its next step."""
    marks: list[Position] = field(default_factory=list)
    """Positions ahead at which it leaves a checkpoint, in order."""
    reuse: "Reuse | None" = None
    """What it found in the cache at its first admission that came to a committed step."""
    reuse_counted: bool = False
    flawed: bool = False
    """Whether a resume point on its way was found broken."""
    passed_over: bool = False
    """Whether a resume point that lies in a tier was not waited for."""
    preempted: bool = False
    """In the queue since it gave up its memory."""
    left: list[Position] = field(default_factory=list)
    """Where it has left checkpoints on its way."""
    emitting: tuple[Position, ...] = ()
    """Where launched steps leave checkpoints that are not committed yet."""
    receipt: "StepReceipt | None" = None
    """Of the last committed step that moved this state; None: nothing of it is committed."""
    admissions: int = 0
    entered: int = 0
    """Tokens that it had when it was last admitted. Computing these is prefill, whoever wrote them."""
    tainted: bool = False
    """Its restore failed: what steps computed since is worthless, and it starts over."""
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    """Of prompt tokens 1, 2, ... as far as they are computed, when the request wants them."""
    first_scheduled_seconds: float | None = None
    arrived_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.request.prompt)

    @property
    def namespace(self) -> str:
        """What keeps its cached prefixes apart from others'. Model and layout are checked by fingerprint."""
        return f"{self.request.tenant}\0{self.request.cache_salt}"

    @cached_property
    def prompt_tokens(self) -> NDArray[np.int32]:
        return np.array(self.request.prompt, np.int32)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        """Tokens sampled so far, pending ones included."""
        return len(self.tokens) - self.prompt_length + self.pending

    @property
    def length(self) -> int:
        return len(self.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Tokens that are to be computed before the next one can be sampled."""
        return self.length - self.scheduled

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first: higher priority means a lower number (as vLLM's), then arrival."""
        return (self.request.priority, self.arrival)
