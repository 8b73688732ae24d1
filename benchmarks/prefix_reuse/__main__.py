"""``python -m benchmarks.prefix_reuse``: a table of hit rates by eviction policy, geometry and memory."""

import json
import math
import statistics
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.prefix_reuse.geometry import NAMED, Geometry, of_model
from benchmarks.prefix_reuse.setups import SETUPS, run, tuned
from benchmarks.prefix_reuse.simulation import Totals
from benchmarks.prefix_reuse.traces import BLOCK, KINDS, TraceRequest, generate, read

console = Console(width=160)


def main(
    trace: Annotated[
        Path | None, typer.Option(help="A trace file; without it, or when it is absent, generated.")
    ] = None,
    generated: Annotated[str, typer.Option(help=f"Kind of generated trace: {', '.join(KINDS)}.")] = "mixture",
    seconds: Annotated[float, typer.Option(help="Length of the generated trace.")] = 1200,
    seed: Annotated[int, typer.Option(help="Of the generated trace.")] = 0,
    geometry: Annotated[str, typer.Option(help="A, B, or a model's config.json; several separated by commas.")] = "A,B",
    budgets: Annotated[str, typer.Option(help="Gigabytes (10^9), separated by commas; inf is allowed.")] = "20,80,inf",
    policies: Annotated[str, typer.Option(help=f"Any of {', '.join(SETUPS)}.")] = ",".join(SETUPS),
    page_size: Annotated[int, typer.Option(help="Tokens in a page.")] = BLOCK,
    grain: Annotated[int, typer.Option(help="Prompts are known in multiples of so many tokens only.")] = 1,
    block: Annotated[int, typer.Option(help="Tokens that an id of the generated trace stands for.")] = BLOCK,
    part: Annotated[str, typer.Option(help="all, first or second: half of the trace.")] = "all",
    output: Annotated[Path | None, typer.Option("--json", help="Where to write the figures.")] = None,
) -> None:
    """Drive the prefix tree, the placement of checkpoints and the eviction with a trace of requests."""
    requests, source = _requests(trace, generated, seconds, seed, block)
    requests = _part(requests, part)
    prompt = sum(r.prompt for r in requests)
    console.print(
        f"{source}, {part}: {len(requests):,} requests, {prompt:,} prompt tokens; pages of {page_size} tokens"
    )
    geometries = [NAMED.get(name) or of_model(Path(name)) for name in geometry.split(",")]
    points = [(g, float(budget)) for g in geometries for budget in budgets.split(",")]
    rows = [_measure(name, points, requests, page_size, grain) for name in policies.split(",")]
    _print(points, rows)
    if output is not None:
        figures = {"trace": source, "part": part, "requests": len(requests), "page_size": page_size, "rows": rows}
        output.write_text(json.dumps(figures, indent=1))


def _requests(trace: Path | None, kind: str, seconds: float, seed: int, block: int) -> tuple[list[TraceRequest], str]:
    if trace is not None and trace.exists():
        return read(trace), trace.name
    if trace is not None:
        console.print(f"{trace} does not exist; a trace is generated instead")
    return generate(kind, seconds, seed, block), f"generated {kind}, seed {seed}"


def _part(requests: list[TraceRequest], part: str) -> list[TraceRequest]:
    half = len(requests) // 2
    return {"all": requests, "first": requests[:half], "second": requests[half:]}[part]


def _measure(
    name: str, points: list[tuple[Geometry, float]], requests: list[TraceRequest], page_size: int, grain: int
) -> dict[str, Any]:
    results = []
    for geometry, budget in points:
        started = perf_counter()
        setup = tuned(SETUPS[name], geometry, budget * 1e9, requests)
        totals = run(setup, geometry, budget * 1e9, requests, page_size, grain)
        results.append(_figures(geometry, budget, totals, perf_counter() - started))
        console.print(
            f"[dim]{name} {geometry.name} {budget:g}: {results[-1]['effective_hit_rate']:.2f}% "
            f"in {results[-1]['seconds']:.0f} s[/dim]"
        )
    return {"policy": name, "text": SETUPS[name].text, "results": results}


def _figures(geometry: Geometry, budget: float, totals: Totals, seconds: float) -> dict[str, Any]:
    return {
        "geometry": geometry.name,
        "budget_gb": None if math.isinf(budget) else budget,
        "hit_rate": round(totals.hit_rate, 3),
        "effective_hit_rate": round(totals.effective_hit_rate, 3),
        "saved_seconds": round(totals.saved_seconds, 1),
        "lookup_us": round(statistics.median(totals.lookup_seconds) * 1e6, 1),
        "lookup_p99_us": round(_percentile(totals.lookup_seconds, 0.99) * 1e6, 1),
        "insert_us": round(statistics.median(totals.insert_seconds or [0]) * 1e6, 1),
        "evict_us": round(statistics.fmean(totals.evict_seconds or [0]) * 1e6, 1),
        "evictions": totals.evictions,
        "seconds": round(seconds, 1),
    }


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _print(points: list[tuple[Geometry, float]], rows: list[dict[str, Any]]) -> None:
    for title, key, digits in (
        ("Effective hit rate: prompt tokens skipped, %", "effective_hit_rate", 1),
        ("Hit rate: prompt tokens known, %", "hit_rate", 1),
        ("Recomputation saved, seconds", "saved_seconds", 0),
        ("Look-up, median microseconds", "lookup_us", 0),
        ("Eviction, mean microseconds a request", "evict_us", 0),
    ):
        table = Table("policy", title=title, title_justify="left")
        for geometry, budget in points:
            table.add_column(f"{geometry.name} {budget:g}", justify="right")
        for row in rows:
            table.add_row(row["policy"], *(f"{result[key]:,.{digits}f}" for result in row["results"]))
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
