"""Commands and their flags. Everything heavy is imported when a command runs: ``plait --help`` answers at once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from plait_engine.config import EngineConfig

app = typer.Typer(
    name="plait",
    help="An OpenAI-compatible inference server for hybrid language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[str | None, typer.Argument(help="A folder in Hugging Face format, or org/name. Default: the demo.")]
Config = Annotated[Path | None, typer.Option(help="YAML file with any of these options; flags win over it.")]
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
Host = Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 8000 by default, 0 for any free one.")]
ServedName = Annotated[list[str] | None, typer.Option(help="Name that clients use; may be given several times.")]
ApiKey = Annotated[str | None, typer.Option(help="The one key that requests must carry.")]
Keys = Annotated[Path | None, typer.Option(help="File of keys, as `plait key` prints them; read again on change.")]
GuardMetrics = Annotated[bool | None, typer.Option("--guard-metrics", help="/metrics wants a key too.")]
AuditLog = Annotated[Path | None, typer.Option(help="File that gets a JSON line per request.")]
Grace = Annotated[float | None, typer.Option(help="Seconds for running requests after SIGTERM; 30 by default.")]
LogLevel = Annotated[str | None, typer.Option(help="critical, error, warning, info or debug.")]
AccessLog = Annotated[bool | None, typer.Option("--access-log", help="A log line per request.")]


@app.command()
def serve(
    model: Model = None,
    host: Host = None,
    port: Port = None,
    served_model_name: ServedName = None,
    dtype: Dtype = None,
    memory: Memory = None,
    max_seqs: MaxSeqs = None,
    max_batch_tokens: MaxBatchTokens = None,
    max_model_len: MaxModelLen = None,
    max_queue: MaxQueue = None,
    load_format: LoadFormat = None,
    device: Device = None,
    state_dtype: StateDtype = None,
    page_size: PageSize = None,
    threads: Threads = None,
    api_key: ApiKey = None,
    keys: Keys = None,
    guard_metrics: GuardMetrics = None,
    audit_log: AuditLog = None,
    grace_seconds: Grace = None,
    log_level: LogLevel = None,
    access_log: AccessLog = None,
    config: Config = None,
) -> None:
    """Serve a model over HTTP."""
    flags = locals()
    from plait_server.cli.options import OptionError, read_options
    from plait_server.cli.start import serve_model

    try:
        options = read_options(flags.pop("config"), flags)
    except OptionError as error:
        fail(error)
    sys.exit(serve_model(options.engine, options.server))


@app.command()
def chat(
    model: Model = None,
    url: Annotated[str | None, typer.Option(help="A running server; else one is started for the chat.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: the model's own.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest reply.")] = None,
) -> None:
    """Talk to a model in the terminal. /reset forgets the conversation, /quit ends it."""
    from plait_server.cli.local_server import LocalServerFailed
    from plait_server.cli.terminal_chat import ChatSettings, run_chat

    settings = ChatSettings(system=system, temperature=temperature, max_tokens=max_tokens)
    try:
        run_chat(url, model, settings)
    except LocalServerFailed as error:
        fail(error)


@app.command()
def plan(
    model: Model = None,
    dtype: Dtype = None,
    memory: Memory = None,
    max_seqs: MaxSeqs = None,
    max_batch_tokens: MaxBatchTokens = None,
    max_model_len: MaxModelLen = None,
    device: Device = None,
    state_dtype: StateDtype = None,
    page_size: PageSize = None,
    config: Config = None,
) -> None:
    """Print the memory plan of a model without loading it."""
    flags = locals()
    engine_config = engine_options(flags.pop("config"), flags)
    from plait_server.cli.offline import print_memory_plan

    sys.exit(print_memory_plan(engine_config))


@app.command()
def inspect(
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
    config: Config = None,
) -> None:
    """Print a model's layers: kind, state, and the kernel chosen for each."""
    flags = locals()
    engine_config = engine_options(flags.pop("config"), flags)
    from plait_server.cli.offline import print_layers

    sys.exit(print_layers(engine_config))


@app.command()
def verify(
    model: Model = None,
    dtype: Dtype = None,
    memory: Memory = None,
    device: Device = None,
    config: Config = None,
) -> None:
    """Check a model's answers: against transformers, in pieces, and beside others."""
    flags = locals()
    engine_config = engine_options(flags.pop("config"), flags)
    from plait_server.cli.offline import verify_model

    sys.exit(verify_model(engine_config))


@app.command()
def key(
    name: Annotated[str, typer.Option(help="What logs call the key; unique in its file.")],
    tenant: Annotated[str, typer.Option(help="Whose it is. Keys of one tenant share what is cached.")],
) -> None:
    """Make an API key. The key goes to the terminal, once; its entry for the file of keys to the output."""
    from plait_server.cli.new_key import make_key

    try:
        entry, secret = make_key(name, tenant)
    except ValueError as error:
        fail(error)
    typer.echo(f"key (keep it, it is written down nowhere): {secret}", err=True)
    typer.echo(entry, nl=False)


@app.command()
def drill(
    model: Model = None,
    dtype: Dtype = None,
    load_format: LoadFormat = None,
    memory: Memory = None,
    device: Device = None,
    state_dtype: StateDtype = None,
    page_size: PageSize = None,
    config: Config = None,
) -> None:
    """Break cached state in every way, and see that answers stay right."""
    flags = locals()
    engine_config = engine_options(flags.pop("config"), flags)
    from plait_server.cli.offline import drill_model

    sys.exit(drill_model(engine_config))


@app.command()
def version() -> None:
    """Print the release."""
    from plait_server.release import installed_version

    typer.echo(installed_version())


def engine_options(config: Path | None, flags: dict[str, object]) -> "EngineConfig":
    from plait_server.cli.options import OptionError, read_options

    try:
        return read_options(config, flags).engine
    except OptionError as error:
        fail(error)


def fail(error: Exception) -> NoReturn:
    typer.secho(f"error: {error}", err=True, fg="red")
    raise typer.Exit(2)


def main() -> None:
    app()
