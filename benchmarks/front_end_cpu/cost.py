"""Processor time for a streamed token, beside uvicorn's for as many writes of the same size, in turns."""

import statistics
from collections import defaultdict
from typing import NamedTuple

import uvloop

from benchmarks.front_end_cpu.reading import read
from benchmarks.front_end_cpu.servers import TOKENS, ServerProcess, bare, plait

STEP_SECONDS = 0.02


class Cost(NamedTuple):
    """Microseconds of the server for a token, its share of the requests included."""

    user: float
    system: float

    @property
    def both(self) -> float:
        return self.user + self.system


def measure(paths: tuple[str, ...], streams: int, tokens: int, rounds: int) -> None:
    ours: dict[str, list[Cost]] = defaultdict(list)
    theirs: dict[str, list[Cost]] = defaultdict(list)
    with ServerProcess(plait, STEP_SECONDS) as server, ServerProcess(bare, STEP_SECONDS) as constant:
        sizes = {path: event_bytes(server, path) for path in paths}
        for number in range(rounds + 1):
            for path in paths:
                base = cost(constant, f"/{sizes[path]}", streams, tokens)
                own = cost(server, path, streams, tokens)
                if number:  # the first round warms up
                    theirs[path].append(base)
                    ours[path].append(own)
    for path in paths:
        pairs = list(zip(ours[path], theirs[path], strict=True))
        ratios = [own.both / base.both for own, base in pairs]
        print(f"{path}: {statistics.median(ratios):.2f} x the bare loop ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"  Plait         {shown(ours[path])}")
        print(f"  constant bytes{shown(theirs[path])}, {sizes[path]} of them")


def cost(server: ServerProcess, path: str, streams: int, tokens: int) -> Cost:
    user, system = server.cpu_seconds()
    uvloop.run(read(server.port, path, streams, tokens))
    then_user, then_system = server.cpu_seconds()
    each = 1e6 / (streams * tokens)
    return Cost((then_user - user) * each, (then_system - system) * each)


def event_bytes(server: ServerProcess, path: str) -> int:
    """Of an event with a token, on average."""
    (reading,) = uvloop.run(read(server.port, path, 1, len(TOKENS)))
    sizes = [len(b"data: " + event + b"\n\n") for _, event in reading.events()]
    return round(statistics.mean(sizes))


def shown(costs: list[Cost]) -> str:
    user, system, both = (statistics.median(column) for column in zip(*((*c, c.both) for c in costs), strict=True))
    return f" {both:5.1f} us a token (user {user:.1f}, system {system:.1f})"
