"""Many streams at a steady pace: is every token there, how late is it, and what does it take?"""

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import psutil
import uvloop

from benchmarks.front_end_cpu.reading import read
from benchmarks.front_end_cpu.servers import TOKENS, ServerProcess, allow_many_connections, plait
from tests.server.tiny_text import byte_level_tokenizer

MIB = 1 << 20


def measure(paths: tuple[str, ...], streams: int, tokens: int, pace: float) -> None:
    allow_many_connections()
    for path in paths:
        with ServerProcess(plait, pace) as server:
            uvloop.run(read(server.port, path, 1, 2))
            report(server, path, streams, tokens, pace)


def report(server: ServerProcess, path: str, streams: int, tokens: int, pace: float) -> None:
    memory, waited, used, began = server.memory_bytes(), server.waited_seconds(), server.cpu_seconds(), time.monotonic()
    readers = psutil.Process().cpu_times()
    readings = uvloop.run(read(server.port, path, streams, tokens))
    seconds = time.monotonic() - began
    used_now, readers_now = server.cpu_seconds(), psutil.Process().cpu_times()
    busy, reading = sum(used_now) - sum(used), sum(readers_now[:2]) - sum(readers[:2])
    waited, grown = server.waited_seconds() - waited, server.memory_bytes() - memory
    arrived = [list(reading.tokens()) for reading in readings]
    wrong = sum(not in_order([text for _, text in stream], tokens) for stream in arrived)
    lost = streams * tokens - sum(map(len, arrived))
    late = steady_lateness(arrived, pace)
    first = [stream[0][0] - reading.began for stream, reading in zip(arrived, readings, strict=True) if stream]
    print(f"{path}: {streams} streams, a token every {pace:g} s, {tokens} tokens each, {seconds:.1f} s")
    print(f"  tokens lost {lost}, streams that are not exactly what was generated {wrong}")
    print(f"  first token, ms, while all of them arrive at once: {percentiles(first)}")
    print(f"  lateness, ms, once all of them run ({len(late)} tokens): {percentiles(late)}")
    print(
        f"  server {busy / seconds:.0%} of a core, {busy / (streams * tokens) * 1e6:.1f} us a token, "
        f"and {waited / seconds:.0%} of the time waiting for one (readers {reading / seconds:.0%})"
    )
    print(f"  memory for all streams {grown / MIB:.0f} MiB")


def in_order(texts: Sequence[str], tokens: int) -> bool:
    """Whether each token is the one that follows the one before it."""
    if len(texts) != tokens or not STEP_OF.keys() >= set(texts):
        return False
    return all((STEP_OF[then] - STEP_OF[text]) % len(TOKENS) == 1 for text, then in pairwise(texts))


def steady_lateness(arrived: Sequence[list[tuple[float, str]]], pace: float) -> list[float]:
    """Seconds from when a token was due to when it was read, while all streams run."""
    begin = max(stream[0][0] for stream in arrived)
    end = min(stream[-1][0] for stream in arrived)
    return [at - due(at, text, pace) for stream in arrived for at, text in stream if begin < at <= end]


def due(at: float, text: str, pace: float) -> float:
    """When the step was due that this text is of: the last such step before ``at``."""
    step = int(at / pace)
    return (step - (step - STEP_OF[text]) % len(TOKENS)) * pace


def percentiles(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "none"
    cuts = statistics.quantiles(seconds, n=1000)
    named = {"median": cuts[499], "95%": cuts[949], "99%": cuts[989], "99.9%": cuts[998], "most": max(seconds)}
    return ", ".join(f"{name} {value * 1e3:.0f}" for name, value in named.items())


STEP_OF = {byte_level_tokenizer().decode([token_id]): step for step, token_id in enumerate(TOKENS)}
"""Text to step, modulo the number of texts."""
