"""``python -m benchmarks.chat_turns MODEL``: prompt tokens computed again, and time to first token, by scenario."""

import argparse
import asyncio
import contextlib
import statistics
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.chat_turns.scenarios import SCENARIOS, Outcome, Scenario
from benchmarks.cpu_serving.servers import Server, llama, plait

Results = dict[str, dict[str, list[Outcome]]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_turns", description=__doc__)
    parser.add_argument("model", type=Path, help="a model folder with a chat template")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's binary: measured beside ours, on --gguf")
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp, converted with its own script")
    show(asyncio.run(measure(parser.parse_args())))


async def measure(arguments: argparse.Namespace) -> Results:
    results: Results = {}
    with contextlib.ExitStack() as stack:
        servers: list[Server] = [stack.enter_context(plait(arguments.model, arguments.dtype, arguments.threads))]
        if (missing := without_llama(arguments.llama_server, arguments.gguf)) is not None:
            print(f"llama.cpp is not measured: {missing}")
        else:
            server = stack.enter_context(llama(str(arguments.llama_server), arguments.gguf, 16, arguments.threads))
            servers.append(Server(server.name, server.url, server.start_seconds, {"ignore_eos": True}))
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)) as client:
            for run in range(arguments.runs):
                for name, scenario in SCENARIOS.items():
                    for server in servers if run % 2 else reversed(servers):
                        outcome = await patiently(client, server, scenario, 100_000 * run + 7 * len(name))
                        results.setdefault(name, {}).setdefault(server.name, []).append(outcome)
    return results


def without_llama(binary: Path | None, gguf: Path | None) -> str | None:
    """Why it cannot be measured, or None."""
    if binary is None or gguf is None:
        return "give --llama-server and --gguf"
    missing = [str(path) for path in (binary, gguf) if not path.is_file()]
    return f"no such file: {', '.join(missing)}" if missing else None


async def patiently(client: httpx.AsyncClient, server: Server, scenario: Scenario, seed: int) -> Outcome:
    """llama.cpp's server now and then closes a connection unanswered; the scenario is then run again."""
    for attempt in range(3):
        try:
            return await scenario(client, server, seed + 37 * attempt)
        except httpx.RemoteProtocolError as error:
            print(f"{server.name}: {error}; again")
    raise RuntimeError(f"{server.name} closed its connections three times")


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
