"""The field ``plait``: what this server offers beyond what clients know from others."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from plait_engine.pin import PinOrder
from plait_server.protocol.body import Body
from plait_server.protocol.values import is_int

MAX_CHECKPOINTS = 16
DEFAULT_TTL_SECONDS = 3_600.0


def offsets(value: Any) -> tuple[int, ...]:
    given = [] if value is None else value
    if not isinstance(given, list) or not all(is_int(place) and place > 0 for place in given):
        raise ValueError("must be a list of positions in the prompt, in tokens, each at least 1")
    if len(given) > MAX_CHECKPOINTS:
        raise ValueError(f"at most {MAX_CHECKPOINTS} positions are allowed, not {len(given)}")
    return tuple(sorted(set(given)))


Offsets = Annotated[
    tuple[int, ...],
    PlainValidator(offsets),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": MAX_CHECKPOINTS},
                {"type": "null"},
            ]
        }
    ),
]


class Extensions(Body):
    checkpoint: Offsets = Field((), description="Positions from which later prompts will go on.")
    pin: bool | None = Field(None, description="Keep the prompt in the cache for an hour.")
    explain_cache: bool | None = Field(None, description="Say in the answer what was reused, and why not more.")

    def pin_order(self) -> PinOrder | None:
        """Pinned is what lies before the last of the positions that were asked for; without any, the prompt."""
        if not self.pin:
            return None
        return PinOrder(ttl_seconds=DEFAULT_TTL_SECONDS, position=max(self.checkpoint, default=None))
