"""What a tenant can ask of what is cached for it, and what it is told."""

from enum import StrEnum

import msgspec

from plait_engine.pin import PinReport


class CacheVerb(StrEnum):
    SHOW = "show"
    UNPIN = "unpin"
    DROP = "drop"
    """Forget all that neither a pin nor a running request needs."""


class CacheOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Reaches nothing but the tenant's own. ``cache_salt`` None: whatever the salt."""

    tenant: str
    verb: CacheVerb = CacheVerb.SHOW
    cache_salt: str | None = None
    pin: str = ""
    """Which one to take off."""


class CacheAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How it is after the order. ``refusal``: why nothing was done."""

    namespaces: int = 0
    """In which something is cached: one for each salt."""
    tokens: int = 0
    checkpoints: int = 0
    n_bytes: int = 0
    pins: tuple[PinReport, ...] = ()
    pinned_bytes: int = 0
    """Of all tenants together."""
    pin_budget_bytes: int = 0
    dropped_tokens: int = 0
    refusal: "CacheRefusal | None" = None


class CacheRefusal(StrEnum):
    UNKNOWN_PIN = "unknown_pin"
    CONFIGURED = "configured"
