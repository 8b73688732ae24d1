"""``python -m benchmarks.cpu_serving MODEL``: one table, medians of interleaved runs, ratios side by side."""

import argparse
import asyncio
import contextlib
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.cpu_serving import loads
from benchmarks.cpu_serving.servers import Server, Transformers, llama, plait

Results = dict[str, dict[str, list[float]]]
Load = Callable[[Server, int, int], Coroutine[Any, Any, float]]


def loads_of(tokens: int) -> dict[str, Load]:
    """``tokens`` are generated for a single stream, as many in proportion elsewhere."""
    return {
        "single, tokens/s": partial(loads.single, tokens=tokens),
        "16 streams, tokens/s": partial(loads.concurrent, tokens=tokens * 3 // 4),
        "first token at 2,048, s": loads.first_token,
        "longest pause, s": partial(loads.stall, tokens=tokens * 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_serving", description=__doc__)
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--tokens", type=int, default=128, help="to generate for a single stream; fewer for large models"
    )
    parser.add_argument("--llama-server", help="the binary; measured too when given with --gguf")
    parser.add_argument("--gguf", type=Path, action="append", default=[])
    parser.add_argument("--slots", default="4,16", help="of llama.cpp's server: one server each")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--json", type=Path, help="where to write all single figures")
    arguments = parser.parse_args()
    results: Results = defaultdict(lambda: defaultdict(list))
    with contextlib.suppress(KeyboardInterrupt):  # what was measured until then is shown
        asyncio.run(measure(arguments, results))
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


async def measure(arguments: argparse.Namespace, results: Results) -> None:
    """Every contender is up all the time and idle while another is measured; the order is the same in each round."""
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        baselines: list[Transformers] = []
        for dtype in arguments.dtypes.split(","):
            servers.append(stack.enter_context(plait(arguments.model, dtype, arguments.threads)))
            if not arguments.no_transformers:
                baselines.append(Transformers(arguments.model, dtype, arguments.threads))
                stack.callback(baselines[-1].close)
        slot_counts = [int(count) for count in arguments.slots.split(",")]
        for gguf in arguments.gguf:
            contenders = (llama(arguments.llama_server, gguf, slots, arguments.threads) for slots in slot_counts)
            servers.extend(map(stack.enter_context, contenders))
        for server in servers:
            results[server.name]["start, s"].append(server.start_seconds)
        for run in track(range(arguments.runs + 1), "measuring (the first round warms up)"):
            figures: Results = defaultdict(lambda: defaultdict(list))
            for server in servers:
                for name, load in loads_of(arguments.tokens).items():
                    figures[server.name][name].append(await persistently(load, server, vocabulary, 100 * run + 7))
            for baseline in baselines:
                prompt = loads.prompt_of(32, vocabulary, run)
                figures[baseline.name]["single, tokens/s"].append(
                    arguments.tokens / baseline.generate(prompt, arguments.tokens)
                )
                long = loads.prompt_of(2048, vocabulary, run)
                figures[baseline.name]["first token at 2,048, s"].append(baseline.generate(long, 1))
            if run:
                for contender, by_load in figures.items():
                    for name, values in by_load.items():
                        results[contender][name].extend(values)


async def persistently(load: Load, server: Server, vocabulary: int, seed: int) -> float:
    """llama.cpp's server now and then closes a connection unanswered; the load is then run again, and said so."""
    for attempt in range(3):
        try:
            return await load(server, vocabulary, seed + attempt)
        except httpx.RemoteProtocolError as error:
            print(f"{server.name}: {error}")
    raise RuntimeError(f"{server.name} closes every connection")


def show(results: Results) -> None:
    columns = ["start, s", *loads_of(1)]
    table = Table("contender", *columns, title="medians")
    for contender, by_load in results.items():
        cells = (f"{statistics.median(by_load[c]):,.3g}" if by_load.get(c) else "" for c in columns)
        table.add_row(contender, *cells)
    Console().print(table)
    for dtype in ("float32", "bfloat16"):
        ours, theirs = results.get(f"plait {dtype}"), results.get(f"transformers {dtype}")
        if ours and theirs:
            median = {k: statistics.median(v) for k, v in ours.items()}
            single = statistics.median(theirs["single, tokens/s"])
            first = statistics.median(theirs["first token at 2,048, s"])
            print(
                f"{dtype}: single {median['single, tokens/s'] / single:.2f} x transformers, "
                f"16 streams {median['16 streams, tokens/s'] / single:.2f} x its single stream, "
                f"first token {median['first token at 2,048, s'] / first:.2f} x, "
                f"longest pause {1000 * median['longest pause, s']:.0f} ms"
            )


if __name__ == "__main__":
    main()
