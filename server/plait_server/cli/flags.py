"""Flags of the commands, each once. A flag that is None was not given."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str | None, typer.Argument(help="A folder in Hugging Face format, or org/name. Default: the demo.")]
Config = Annotated[Path | None, typer.Option(help="YAML file with any of these options; flags win over it.")]

# The engine's.
Dtype = Annotated[str | None, typer.Option(help="auto (the checkpoint's), bfloat16, float16 or float32.")]
StateDtype = Annotated[str | None, typer.Option(help="Of recurrent matrices; float32 by default.")]
LoadFormat = Annotated[str | None, typer.Option(help="auto, or random: weights made up from config.json.")]
Memory = Annotated[str | None, typer.Option(help="All the engine may use on the device, like 4GiB.")]
MaxSeqs = Annotated[int | None, typer.Option(help="Sequences that run at the same time.")]
MaxBatchTokens = Annotated[int | None, typer.Option(help="Tokens of one step.")]
MaxModelLen = Annotated[int | None, typer.Option(help="Longest prompt and answer together.")]
MaxQueue = Annotated[int | None, typer.Option(help="Sequences that may wait before new ones get 503.")]
PageSize = Annotated[int | None, typer.Option(help="Tokens in a page of keys and values.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, or auto.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of the engine.")]
AuditRate = Annotated[float | None, typer.Option(help="Share of cache hits computed again in idle time, 0 to 1.")]

# The server's.
Host = Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 8000 by default, 0 for any free one.")]
ServedName = Annotated[list[str] | None, typer.Option(help="Name that clients use; may be given several times.")]
ToolFormat = Annotated[str | None, typer.Option(help="How the model writes calls of tools; auto by default.")]
ReasoningFormat = Annotated[str | None, typer.Option(help="auto, think or none: whether reasoning is split off.")]
ApiKey = Annotated[str | None, typer.Option(help="The one key that requests must carry.")]
Keys = Annotated[Path | None, typer.Option(help="File of keys, as `plait key` prints them; read again on change.")]
GuardMetrics = Annotated[bool | None, typer.Option("--guard-metrics", help="/metrics wants a key too.")]
AllowNetwork = Annotated[list[str] | None, typer.Option(help="Network of clients, like 10.0.0.0/8; others get 403.")]
TrustedProxy = Annotated[list[str] | None, typer.Option(help="Network of proxies whose X-Forwarded-For is believed.")]
CorsOrigin = Annotated[list[str] | None, typer.Option(help="Web page that may use the server from a browser, or *.")]
RootPath = Annotated[str | None, typer.Option(help="Path under which a proxy shows the server, like /llm.")]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate chain, as PEM; serves HTTPS.")]
TlsKey = Annotated[Path | None, typer.Option(help="The certificate's private key, as PEM.")]
AuditLog = Annotated[Path | None, typer.Option(help="File that gets a JSON line per request.")]
RequestTimeout = Annotated[float | None, typer.Option(help="Seconds one request may take; no limit by default.")]
Grace = Annotated[float | None, typer.Option(help="Seconds for running requests after SIGTERM; 30 by default.")]
LogLevel = Annotated[str | None, typer.Option(help="critical, error, warning, info or debug.")]
AccessLog = Annotated[bool | None, typer.Option("--access-log", help="A log line per request.")]
