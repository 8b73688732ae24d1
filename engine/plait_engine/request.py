"""What a client asked, and what comes back: the messages between front end and engine."""

from enum import StrEnum

import msgspec

from plait_engine.pin import PinOrder, PinOutcome


class FinishReason(StrEnum):
    """Why a sequence ended; the first two are what clients see as ``finish_reason``."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are picked. Values were validated before this object is built; see ``__post_init__``.

    ``temperature`` 0 is greedy. ``top_k`` 0 means no limit. ``logprobs`` is the number of alternatives wanted
    beside the chosen token (None: no log-probabilities at all); likewise ``prompt_logprobs``.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 0 or self.min_tokens < 0 or self.min_tokens > self.max_tokens:
            raise ValueError("max_tokens must be at least min_tokens, and neither may be negative")
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError("temperature must be a finite number of at least 0")
        if self.top_k < 0 or not 0.0 < self.top_p <= 1.0 or not 0.0 <= self.min_p <= 1.0:
            raise ValueError("top_k must be >= 0, top_p in (0, 1], min_p in [0, 1]")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ValueError("repetition_penalty must be a finite number above 0")


class GrammarKind(StrEnum):
    JSON = "json"
    """The text is a JSON schema."""
    REGEX = "regex"
    LARK = "lark"
    """In the notation of Lark, as llguidance understands it."""


class Grammar(msgspec.Struct, frozen=True):
    """What an answer must look like, and nothing else."""

    kind: GrammarKind
    text: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to continue it. ``id`` is ours and unique; a client's own id never reaches the engine.

    ``n`` sequences are generated from the prompt; sequence ``i`` uses seed ``seed + i``'s stream of random numbers.
    ``tenant`` and ``cache_salt`` are the namespace of what is cached.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    marks: tuple[int, ...] = ()
    """Prompt positions where a checkpoint is worth its bytes: the stable point of a chat prompt, the end of the system
    prompt, what the client asked for. Empty: the engine picks the prompt's end."""
    grammar: Grammar | None = None
    pin: PinOrder | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one place: the token that stands there, and the most probable ones, best first.

    ``token_logprob`` is the identical float in ``top`` when the token is among them. ``rank`` counts from 1.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class CacheReport(msgspec.Struct, frozen=True, array_like=True):
    """What a sequence's prompt found in the cache, and left there.

    Of ``known`` tokens ``effective`` were skipped: up to the resume point. ``reason`` says why not more: why the resume
    point lies before the end of what was known or, when nothing was known, why not.
    """

    known: int
    effective: int
    reason: str | None
    checkpoints: tuple[int, ...]
    """Positions at which reading the prompt left a checkpoint."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one sequence. The last delta of a sequence carries its finish reason.

    ``stop_reason`` is the token id that ended the sequence when it is not an end token of the model.
    ``cached_tokens``, ``prompt_logprobs``, ``cache`` and ``pin`` come with a sequence's first delta only
    (``prompt_logprobs[0]`` is None).
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
    cache: CacheReport | None = None
    pin: PinOutcome | None = None
