"""What front end and engine say to each other of pins: prefixes that stay in the cache until their time is over."""

import msgspec


class PinOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a request: keep what it computes. ``ttl_seconds`` None: for as long as the engine runs.

    ``position``: the place in the prompt up to which; None: up to the last place that later prompts can go on from.
    ``configured``: the operator's, which clients cannot take off.
    """

    ttl_seconds: float | None
    position: int | None = None
    configured: bool = False


class PinReport(msgspec.Struct, frozen=True, kw_only=True):
    """One pin as its tenant may see it: never the tokens, and never the salt."""

    id: str
    tokens: int
    n_bytes: int
    """Of memory, in whole; what two pins share is in both."""
    expires_in_seconds: float | None
    configured: bool = False


class PinOutcome(msgspec.Struct, frozen=True):
    """Of an order: the pin, or why there is none."""

    pin: PinReport | None
    refusal: str | None = None
