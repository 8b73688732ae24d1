"""``plait bench``: commands that measure a server."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measure a server.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure a server."""


@app.command()
def serve(
    url: Annotated[str, typer.Option(help="Base URL, with /v1.")] = "http://127.0.0.1:8000/v1",
    workload: Annotated[str, typer.Option(help="random, shared-prefix, multi-turn or trace.")] = "random",
    sessions: Annotated[int, typer.Option(min=1, help="Prompts, or conversations with multi-turn.")] = 100,
    concurrency: Annotated[int, typer.Option(min=1, help="Sessions at a time.")] = 8,
    rate: Annotated[float | None, typer.Option(help="Sessions a second instead, arriving by chance.")] = None,
    input_tokens: Annotated[int, typer.Option(min=1, help="Of one question.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of one answer.")] = 64,
    spread: Annotated[float, typer.Option(min=0, max=1, help="Share by which these lengths vary.")] = 0.0,
    prefix_tokens: Annotated[int, typer.Option(min=1, help="Of a shared system prompt.")] = 1_024,
    groups: Annotated[int, typer.Option(min=1, help="Different system prompts.")] = 4,
    turns: Annotated[int, typer.Option(min=1, help="Of a conversation.")] = 4,
    trace: Annotated[Path | None, typer.Option(help="File of the workload trace, a JSON object a line.")] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Times as fast as the trace was recorded.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed is the same load.")] = 0,
    model: Annotated[str | None, typer.Option(help="Default: the first that the server names.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Where the server wants one.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of full length.")] = True,
    json: Annotated[Path | None, typer.Option(help="File for the numbers.")] = None,
) -> None:
    """Put load on any OpenAI-compatible server. Tells times to first token, between tokens and end to end."""
    from plait_server.bench.run import Run, bench
    from plait_server.bench.workload import Shape

    shape = Shape(
        sessions=sessions,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        spread=spread,
        prefix_tokens=prefix_tokens,
        groups=groups,
        turns=turns,
        trace=trace,
        speed=speed,
        seed=seed,
    )
    extra = {"ignore_eos": True} if ignore_eos else {}
    try:
        run = Run(
            url=url.rstrip("/"),
            workload=workload,
            shape=shape,
            concurrency=concurrency,
            rate=rate,
            model=model,
            api_key=api_key,
            extra=extra,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    sys.exit(bench(run, json))
