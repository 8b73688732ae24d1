"""What the HTTP side can be told at start. The engine has its own configuration."""

import re
from dataclasses import asdict, dataclass, field
from ipaddress import ip_network
from pathlib import Path

from plait_server.configured_pins import ConfiguredPin
from plait_server.reply.formats.choose import FORMATS

REASONING = ("auto", "think", "none")
ROOT_PATH = re.compile(r"(/[\w.~-]+)+")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Printed once at start; nothing changes it afterwards."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    """Names clients may put in ``model``; the first is the one that answers carry. Empty: the model's own."""
    tool_format: str = "auto"
    """How the model writes calls of tools; ``auto`` is what its template shows, else what its family does."""
    reasoning_format: str = "auto"
    """``think``: reasoning stands between ``<think>`` and ``</think>``; ``none``; ``auto``: as the template shows."""
    grace_seconds: float = 30.0
    """How long running requests may go on after SIGTERM."""
    keep_alive_seconds: int = 75
    header_timeout_seconds: float = 20.0
    body_timeout_seconds: float = 60.0
    max_header_bytes: int = 3 * 512 * 1024
    """All headers of one request. Clients have been seen to send request ids of a megabyte."""
    max_headers: int = 256
    max_body_bytes: int = 32 * 1024 * 1024
    api_key: str | None = field(default=None, repr=False)
    """One key for everybody; printed nowhere."""
    keys: Path | None = None
    """File of keys with names, tenants and limits."""
    keys_seconds: float = 1.0
    """How often the file of keys is looked at."""
    guard_metrics: bool = False
    """Whether the metrics page wants a key too, where there are keys."""
    allowed_networks: tuple[str, ...] = ()
    """Clients must be in one of them, like ``10.0.0.0/8``. Empty: all may."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` say who the client is."""
    cors_origins: tuple[str, ...] = ()
    """Pages that may use the server from a browser, like ``https://chat.example.com``; ``*`` is all."""
    root_path: str = ""
    """Where a proxy shows the server, like ``/llm``. Requests may come with this path and without."""
    tls_cert: Path | None = None
    """Chain of certificates, as PEM."""
    tls_key: Path | None = None
    audit_log: Path | None = None
    """File that gets a JSON line per request."""
    grammar_seconds: float = 2.0
    """How long a grammar may take to compile."""
    request_timeout_seconds: float | None = None
    """From when a request is understood to the end of its answer."""
    max_sequences_per_request: int = 1_024
    """Bound on prompts times ``n``: each is a place in the engine's queue."""
    heartbeat_limit_seconds: float = 60.0
    """An engine that has not gone round its loop for this long counts as dead for ``/health``."""
    answer_limit_seconds: float = 5.0
    """An engine that has answered no question for this long is not ready: longer than one step takes."""
    poll_seconds: float = 1.0
    """How often the engine is asked how it is, so that probes can be answered from memory."""
    probe_seconds: float = 0.2
    """How long a probe waits for a fresher answer; probes have short time-outs of their own."""
    scrape_seconds: float = 2.0
    """How long the metrics page waits for the engine's figures."""
    pins: tuple[ConfiguredPin, ...] = ()
    """Prefixes that are computed at start and stay."""
    log_level: str = "info"
    access_log: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
        if self.grace_seconds < 0:
            raise ValueError("grace_seconds must not be negative")
        if self.request_timeout_seconds is not None and self.request_timeout_seconds <= 0:
            raise ValueError("request_timeout must be above 0; leave it out to set none")
        if self.tool_format not in ("auto", *FORMATS):
            raise ValueError(f"tool_format must be one of auto, {', '.join(FORMATS)}, not {self.tool_format!r}")
        if self.reasoning_format not in REASONING:
            raise ValueError(f"reasoning_format must be one of {', '.join(REASONING)}, not {self.reasoning_format!r}")
        for network in (*self.allowed_networks, *self.trusted_proxies):
            ip_network(network)  # Raises ValueError, and says what is wrong.
        if self.root_path and not ROOT_PATH.fullmatch(self.root_path):
            raise ValueError(f"root_path must begin with a slash and not end with one, not {self.root_path!r}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError("api_key must not be empty; leave it out to serve without keys")

    def lines(self) -> list[str]:
        """One ``name = value`` line per option, for the log."""
        shown = asdict(self) | {"pins": len(self.pins)} | ({} if self.api_key is None else {"api_key": "(set)"})
        return [f"{name} = {(str(value) if isinstance(value, Path) else value)!r}" for name, value in shown.items()]
