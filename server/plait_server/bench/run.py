"""One run: find out about the server, play the sessions, tell what came of it."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from plait_server.bench.pace import at_a_rate, at_a_time, when_due
from plait_server.bench.report import lines, report, table
from plait_server.bench.session import Session
from plait_server.bench.target import Measured, Target, TargetFailed, model_of, tokens_per_word
from plait_server.bench.words import Words
from plait_server.bench.workload import LOADS, BadTrace, Shape

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@dataclass(frozen=True, kw_only=True)
class Run:
    url: str
    """With ``/v1``, like the base URL of an SDK."""
    workload: str = "random"
    shape: Shape = field(default_factory=Shape)
    concurrency: int = 8
    rate: float | None = None
    """Sessions a second; instead of ``concurrency``."""
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.workload not in LOADS:
            raise ValueError(f"workload must be one of {', '.join(LOADS)}, not {self.workload!r}")
        if (self.workload == "trace") != (self.shape.trace is not None):
            raise ValueError("a trace goes with the workload trace, and only with it")
        if self.concurrency < 1 or (self.rate is not None and self.rate <= 0):
            raise ValueError("concurrency and rate must be above 0")


async def play(run: Run, progress: Progress | None = None) -> dict[str, Any]:
    """The report. Raises ``TargetFailed`` or ``BadTrace``."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {} if run.api_key is None else {"Authorization": f"Bearer {run.api_key}"}
    timeout = httpx.Timeout(run.timeout_seconds)
    async with httpx.AsyncClient(base_url=run.url, headers=headers, limits=limits, timeout=timeout) as client:
        target = Target(client, run.model or await model_of(client), run.extra)
        # Made beforehand: making texts takes time that would be the server's.
        sessions = list(LOADS[run.workload](run.shape, Words(await tokens_per_word(target))))
        measured: list[Measured] = []
        total = sum(len(session.turns) for session in sessions)
        bar = progress.add_task(run.workload, total=total) if progress else None

        async def converse(session: Session) -> None:
            messages = [{"role": "system", "content": session.system}] if session.system else []
            for turn in session.turns:
                messages.append({"role": "user", "content": turn.text})
                measured.append(await target.ask(messages, turn.max_tokens))
                if progress is not None and bar is not None:
                    progress.advance(bar)
                if measured[-1].error is not None:
                    return
                messages.append({"role": "assistant", "content": measured[-1].text})

        started = time.perf_counter()
        if run.workload == "trace":
            await when_due(sessions, converse)
        elif run.rate is not None:
            await when_due(at_a_rate(sessions, run.rate, run.shape.seed), converse)
        else:
            await at_a_time(sessions, converse, run.concurrency)
        seconds = time.perf_counter() - started
    settings = asdict(run) | {"model": target.model}
    del settings["api_key"]
    return {"settings": settings, **report(measured, seconds)}


def bench(run: Run, output: Path | None) -> int:
    """The exit status: 0, 1 when requests failed, 2 when the server or the trace cannot be used."""
    console = Console(stderr=True)
    try:
        with Progress(*COLUMNS, console=console) as progress:
            numbers = asyncio.run(play(run, progress))
    except (TargetFailed, BadTrace, OSError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 2
    shown = Console()
    for line in lines(numbers):
        shown.print(line, markup=False, highlight=False)
    shown.print(table(numbers))
    if output is not None:
        output.write_text(json.dumps(numbers, indent=2, default=str) + "\n")
    return 1 if numbers["requests"]["failed"] else 0
