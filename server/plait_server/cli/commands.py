"""Commands and their flags. Everything heavy is imported when a command runs: ``plait --help`` answers at once."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from plait_server.cli import bench, flags

if TYPE_CHECKING:
    from plait_server.cli.options import Options

app = typer.Typer(
    name="plait",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")


@app.command()
def serve(
    model: flags.Model = None,
    host: flags.Host = None,
    port: flags.Port = None,
    served_model_name: flags.ServedName = None,
    tool_format: flags.ToolFormat = None,
    reasoning_format: flags.ReasoningFormat = None,
    dtype: flags.Dtype = None,
    memory: flags.Memory = None,
    max_seqs: flags.MaxSeqs = None,
    max_batch_tokens: flags.MaxBatchTokens = None,
    max_model_len: flags.MaxModelLen = None,
    max_queue: flags.MaxQueue = None,
    load_format: flags.LoadFormat = None,
    device: flags.Device = None,
    state_dtype: flags.StateDtype = None,
    page_size: flags.PageSize = None,
    threads: flags.Threads = None,
    audit_rate: flags.AuditRate = None,
    api_key: flags.ApiKey = None,
    keys: flags.Keys = None,
    guard_metrics: flags.GuardMetrics = None,
    allow_network: flags.AllowNetwork = None,
    trusted_proxy: flags.TrustedProxy = None,
    cors_origin: flags.CorsOrigin = None,
    root_path: flags.RootPath = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    audit_log: flags.AuditLog = None,
    request_timeout: flags.RequestTimeout = None,
    grace_seconds: flags.Grace = None,
    log_level: flags.LogLevel = None,
    access_log: flags.AccessLog = None,
    config: flags.Config = None,
) -> None:
    """Serve a model over HTTP."""
    options = options_of(locals())
    from plait_server.cli.start import serve_model

    sys.exit(serve_model(options.engine, options.server))


@app.command()
def chat(
    model: flags.Model = None,
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
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    memory: flags.Memory = None,
    max_seqs: flags.MaxSeqs = None,
    max_batch_tokens: flags.MaxBatchTokens = None,
    max_model_len: flags.MaxModelLen = None,
    device: flags.Device = None,
    state_dtype: flags.StateDtype = None,
    page_size: flags.PageSize = None,
    config: flags.Config = None,
) -> None:
    """Print the memory plan of a model without loading it."""
    engine = options_of(locals()).engine
    from plait_server.cli.offline import print_memory_plan

    sys.exit(print_memory_plan(engine))


@app.command()
def inspect(
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    config: flags.Config = None,
) -> None:
    """Print a model's layers: kind, state, and the kernel chosen for each."""
    engine = options_of(locals()).engine
    from plait_server.cli.offline import print_layers

    sys.exit(print_layers(engine))


@app.command()
def verify(
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    memory: flags.Memory = None,
    device: flags.Device = None,
    config: flags.Config = None,
) -> None:
    """Check a model's answers: against transformers, in pieces, and beside others."""
    engine = options_of(locals()).engine
    from plait_server.cli.offline import verify_model

    sys.exit(verify_model(engine))


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
    model: flags.Model = None,
    dtype: flags.Dtype = None,
    load_format: flags.LoadFormat = None,
    memory: flags.Memory = None,
    device: flags.Device = None,
    state_dtype: flags.StateDtype = None,
    page_size: flags.PageSize = None,
    config: flags.Config = None,
) -> None:
    """Break cached state in every way, and see that answers stay right."""
    engine = options_of(locals()).engine
    from plait_server.cli.offline import drill_model

    sys.exit(drill_model(engine))


@app.command()
def profile(
    model: flags.Model = None,
    load: Annotated[
        list[str] | None, typer.Option(help="decode:SEQUENCESxTOKENS or prefill:...; may be repeated.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="File for a Chrome trace of the last load.")] = None,
    dtype: flags.Dtype = None,
    load_format: flags.LoadFormat = None,
    memory: flags.Memory = None,
    max_seqs: flags.MaxSeqs = None,
    max_batch_tokens: flags.MaxBatchTokens = None,
    max_model_len: flags.MaxModelLen = None,
    device: flags.Device = None,
    state_dtype: flags.StateDtype = None,
    page_size: flags.PageSize = None,
    threads: flags.Threads = None,
    config: flags.Config = None,
) -> None:
    """Show where the time of a step goes, and how far it is from what the device could do."""
    given = locals()
    loads, file = given.pop("load"), given.pop("trace")
    from plait_server.cli.profile import print_profile

    sys.exit(print_profile(options_of(given).engine, loads, file))


@app.command()
def version() -> None:
    """Print the release."""
    from plait_server.release import installed_version

    typer.echo(installed_version())


def print_version(*, wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def before_any(
    show: Annotated[
        bool, typer.Option("--version", help="Print the release.", callback=lambda value: print_version(wanted=value))
    ] = False,
) -> None:
    """An OpenAI-compatible inference server for hybrid language models."""


def options_of(given: dict[str, object]) -> "Options":
    """``given``: a command's arguments, the configuration file among them."""
    from plait_server.cli.options import OptionError, read_options

    file = given.pop("config")
    try:
        return read_options(file if isinstance(file, Path) else None, given)
    except OptionError as error:
        fail(error)


def fail(error: Exception) -> NoReturn:
    typer.secho(f"error: {error}", err=True, fg="red")
    raise typer.Exit(2)


def main() -> None:
    app()
