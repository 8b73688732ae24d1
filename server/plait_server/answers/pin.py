"""A pin as clients see it."""

from typing import Any

from plait_engine.pin import PinReport


def report_fields(report: PinReport) -> dict[str, Any]:
    return {
        "id": report.id,
        "object": "cache.pin",
        "tokens": report.tokens,
        "bytes": report.n_bytes,
        "expires_in_seconds": report.expires_in_seconds,
        "configured": report.configured,
    }
