"""``python -m benchmarks.chat_turns MODEL``: prompt tokens computed again, and time to first token, by scenario."""

import argparse
import asyncio
import contextlib
import statistics
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.chat_turns.scenarios import SCENARIOS, Outcome
from benchmarks.cpu_serving.servers import Server, llama, plait

Results = dict[str, dict[str, list[Outcome]]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_turns", description=__doc__)
    parser.add_argument("model", type=Path, help="a model folder with a chat template")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-server", help="the binary; measured too when given with --gguf")
    parser.add_argument("--gguf", type=Path)
    show(asyncio.run(measure(parser.parse_args())))


async def measure(arguments: argparse.Namespace) -> Results:
    results: Results = {}
    with contextlib.ExitStack() as stack:
        servers: list[Server] = [stack.enter_context(plait(arguments.model, arguments.dtype, arguments.threads))]
        if arguments.gguf is not None:
            server = stack.enter_context(llama(arguments.llama_server, arguments.gguf, 16, arguments.threads))
            servers.append(Server(server.name, server.url, server.start_seconds, {"ignore_eos": True}))
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)) as client:
            for run in range(arguments.runs):
                for name, scenario in SCENARIOS.items():
                    for server in servers:
                        outcome = await scenario(client, server, 100_000 * run + 7 * len(name))
                        results.setdefault(name, {}).setdefault(server.name, []).append(outcome)
    return results


def show(results: Results) -> None:
    table = Table("scenario", "server", "prompt tokens", "really new", "computed", "computed / new", "first token, ms")
    for name, by_server in results.items():
        for server, outcomes in by_server.items():
            prompt = sum(turn.prompt for o in outcomes for turn in o.turns)
            new, computed = sum(o.new for o in outcomes), sum(o.processed for o in outcomes)
            first = 1000 * statistics.median(turn.first for o in outcomes for turn in o.turns)
            cells = (f"{prompt:,}", f"{new:,}", f"{computed:,}", f"{computed / new:.2f}", f"{first:.0f}")
            table.add_row(name, server, *cells)
    Console().print(table)
    for server, outcomes in results["8 turns"].items():
        cold = statistics.median(o.turns[0].first for o in outcomes)
        warm = [statistics.median(o.turns[i].first for o in outcomes) / cold for i in range(1, 8)]
        print(f"{server}: first token of turns 2 to 8 over turn 1: " + " ".join(f"{ratio:.2f}" for ratio in warm))


if __name__ == "__main__":
    main()
