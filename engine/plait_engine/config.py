"""Everything that decides how an engine behaves: one frozen object, valid when built, printed at start."""

import re
from dataclasses import dataclass, fields
from enum import StrEnum

from plait_engine.state.poison import Poison

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*$", re.IGNORECASE)
_SCALE = {p + i: (1024 if i else 1000) ** n for n, p in enumerate("kmgt", 1) for i in ("", "i")}


class ConfigError(ValueError):
    """A setting makes no sense, or two do not go together; the message says what to change."""


def parse_bytes(text: str | int) -> int:
    """``"4GiB"``, ``"500 MB"`` or a plain number of bytes."""
    match = _SIZE.match(str(text))
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write it like 4GiB, 500MB or a number of bytes")
    number, unit = match.groups()
    return int(float(number) * _SCALE[unit.lower()]) if unit else int(float(number))


class LoadFormat(StrEnum):
    AUTO = "auto"
    """Weights from the model folder's safetensors."""
    RANDOM = "random"
    """Seeded random weights: only config.json is needed. For measuring speed and memory."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """None means: decided at start from the model and the device, and printed.

    ``memory_bytes``       all that the engine may use on the device: weights, activations and the arena
    ``max_batch_tokens``   tokens of one step; bounds how long a running stream waits for somebody's prompt
    ``max_seqs``           sequences that run at the same time; clamped, with the reason, when memory holds fewer
    ``max_queue``          sequences that may wait beyond those that run; more are refused with 503
    ``state_dtype``        of recurrent matrices; convolution windows and pages have the model's dtype
    ``decode_padding``     decode rows of a step are padded to a multiple of this (rows own a reserved page and slot)
    ``overlap``            plan step N + 1 while step N runs; the plain loop gives the same answers
    ``fast_forward``       compute what a grammar forces all at once; sampled one by one, the answer is the same
    ``tune``               on a GPU that was not measured, the first start tries which configurations are fastest
    ``prefix_reuse``       reuse what was computed for a common prefix; off: nothing is kept and nothing found
    ``require_state_complete``  the promise, written down: a prefix is reused only where every kind of state is there
    ``checkpoint_interval``  tokens between checkpoints inside long prompts
    ``pin_share``          of the arena, what pinned prefixes may hold at most
    ``audit_rate``         share of hits that are computed again from nothing in idle time, and compared
    ``threads``            CPU threads of the engine process
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    state_dtype: str = "float32"
    load_format: LoadFormat = LoadFormat.AUTO
    memory_bytes: int | None = None
    page_size: int = 16
    max_batch_tokens: int | None = None
    max_seqs: int | None = None
    max_model_len: int | None = None
    max_queue: int = 1024
    decode_padding: int = 1
    overlap: bool | None = None
    fast_forward: bool | None = None
    threads: int | None = None
    tune: bool = True
    prefix_reuse: bool = True
    require_state_complete: bool = True
    pin_share: float = 0.25
    checkpoint_interval: int | None = None
    audit_rate: float = 0.0
    seed: int = 0
    poison: Poison = Poison.OFF

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model must name a folder or an org/name")
        for name in ("memory_bytes", "max_batch_tokens", "max_seqs", "max_model_len", "threads", "checkpoint_interval"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in ("page_size", "decode_padding", "max_queue"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.pin_share <= 1:
            raise ConfigError(f"pin_share must be between 0 and 1, not {self.pin_share}")
        if not self.require_state_complete:
            raise ConfigError(
                "require_state_complete cannot be turned off: incomplete state gives wrong answers. To do "
                "without reuse, set prefix_reuse to false"
            )
        if not 0.0 <= self.audit_rate <= 1.0:
            raise ConfigError(f"audit_rate must be a share between 0 and 1, not {self.audit_rate}")
        if self.dtype not in ("auto", "bfloat16", "float16", "float32"):
            raise ConfigError(f"dtype must be auto, bfloat16, float16 or float32, not {self.dtype!r}")
        if self.state_dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"state_dtype must be float32, bfloat16 or float16, not {self.state_dtype!r}")

    def describe(self) -> str:
        return "\n".join(f"  {field.name} = {getattr(self, field.name)}" for field in fields(self))
