"""Request traces: read from a file, or generated.

One request is one JSON object a line: ``timestamp`` (milliseconds from the start), ``input_length``, ``output_length``
(tokens) and ``hash_ids``, one id for each ``block`` tokens of the prompt. Equal ids at equal places mean equal
prefixes, so an id names everything up to the end of its block.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BLOCK = 512
"""Tokens that one id of the trace files stands for."""


@dataclass(frozen=True)
class TraceRequest:
    seconds: float
    """Arrival, from the start of the trace."""
    prompt: int
    """Tokens."""
    output: int
    ids: tuple[int, ...]
    block: int = BLOCK

    def blocks(self) -> tuple[int, ...]:
        """Ids of the whole blocks. The last one, partly filled, is never cached."""
        return self.ids[: self.prompt // self.block]


def read(path: Path) -> list[TraceRequest]:
    with path.open() as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [
        TraceRequest(row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(row["hash_ids"]))
        for row in rows
    ]


def expand(ids: tuple[int, ...], block: int = BLOCK) -> NDArray[np.int32]:
    """Deterministic token ids of whole blocks: equal block ids give equal tokens, others differ everywhere."""
    names = np.asarray(ids, np.int64)[:, None]
    mixed = (names * block + np.arange(block)) * 2654435761
    return ((mixed >> 7) & 0x7FFFFFFF).astype(np.int32).reshape(-1)


# Generated traces ----------------------------------------------------------------------------------------------------


class _Writer:
    """Collects requests of many sources; hands out block ids that nobody has used."""

    def __init__(self, seed: int, block: int = BLOCK) -> None:
        self.random = random.Random(seed)
        self.block = block
        self._next = count()
        self._requests: list[TraceRequest] = []

    def fresh(self, blocks: int) -> tuple[int, ...]:
        return tuple(next(self._next) for _ in range(blocks))

    def blocks(self, median: float, sigma: float = 0.8, largest: int = 200) -> int:
        """A length, log-normal. Median and largest in units of ``BLOCK`` tokens, the result in this trace's blocks."""
        scale = BLOCK / self.block
        return round(min(largest * scale, max(1, self.random.lognormvariate(0, sigma) * median * scale)))

    def rounds(self, median: float, largest: int) -> int:
        """How often something is done, log-normal."""
        return min(largest, max(1, round(self.random.lognormvariate(0, 0.8) * median)))

    def ask(self, seconds: float, ids: tuple[int, ...], output: int = 300) -> None:
        tail = self.random.randrange(1, self.block)
        self._requests.append(
            TraceRequest(seconds, len(ids) * self.block + tail, output, (*ids, *self.fresh(1)), self.block)
        )

    def arrivals(self, per_second: float, duration: float) -> Iterator[float]:
        seconds = self.random.expovariate(per_second)
        while seconds < duration:
            yield seconds
            seconds += self.random.expovariate(per_second)

    def zipf(self, items: int, exponent: float = 1.0) -> Callable[[], int]:
        weights = [1 / (rank + 1) ** exponent for rank in range(items)]
        return lambda: self.random.choices(range(items), weights)[0]

    def finish(self, duration: float) -> list[TraceRequest]:
        return sorted((r for r in self._requests if r.seconds < duration), key=lambda r: r.seconds)


def _chats(w: _Writer, duration: float, rate: float = 1.0) -> None:
    """People talking: a system prompt of a few apps, then turns with think times of a minute or so."""
    systems = [w.fresh(w.blocks(2)) for _ in range(4)]
    app = w.zipf(len(systems))
    for start in w.arrivals(rate, duration):
        ids, seconds, again = systems[app()] + w.fresh(w.blocks(8)), start, 0.3
        while True:
            w.ask(seconds, ids)
            if w.random.random() > again:
                break
            seconds += w.random.lognormvariate(4.6, 1.0)
            ids, again = ids + w.fresh(w.blocks(1.5)), min(0.85, again + 0.1)


def _shared_prompts(w: _Writer, duration: float, rate: float = 3.0) -> None:
    """Many tools with long instructions each, some asked all the time and most seldom; what follows is unique."""
    tools = [w.fresh(w.blocks(12)) for _ in range(400)]
    tool = w.zipf(len(tools))
    for seconds in w.arrivals(rate, duration):
        w.ask(seconds, tools[tool()] + w.fresh(w.blocks(4)), output=150)


def _agents(w: _Writer, duration: float, rate: float = 0.25) -> None:
    """Loops of a program: many quick steps that each append a tool's output, under a few system prompts."""
    systems = [w.fresh(w.blocks(10)) for _ in range(6)]
    system = w.zipf(len(systems))
    for start in w.arrivals(rate, duration):
        ids, seconds = systems[system()] + w.fresh(w.blocks(3)), start
        for _ in range(w.rounds(10, 60)):
            w.ask(seconds, ids, output=120)
            seconds += w.random.lognormvariate(2.0, 0.8)
            ids += w.fresh(w.blocks(1.5))


def _batch(w: _Writer, duration: float, rate: float = 2.5) -> None:
    """A job over documents that are read once each, with one short instruction before them."""
    instruction = w.fresh(w.blocks(1, 0))
    for seconds in w.arrivals(rate, duration):
        w.ask(seconds, instruction + w.fresh(w.blocks(20)), output=50)


def _documents(w: _Writer, duration: float, rate: float = 0.15) -> None:
    """Several questions on one long document, within minutes, then never again."""
    for start in w.arrivals(rate, duration):
        document, seconds = w.fresh(w.blocks(50)), start
        for _ in range(w.rounds(5, 30)):
            w.ask(seconds, document + w.fresh(w.blocks(1, 0)))
            seconds += w.random.expovariate(1 / 40)


def _mixture(w: _Writer, duration: float) -> None:
    _chats(w, duration, 0.5)
    _shared_prompts(w, duration, 0.8)
    _agents(w, duration, 0.06)
    _batch(w, duration, 0.5)
    _documents(w, duration, 0.04)


def _shift(w: _Writer, duration: float) -> None:
    """Traffic that changes its kind in the middle."""
    _chats(w, duration / 2, 1.0)
    late = _Writer(w.random.randrange(1 << 30), w.block)
    late._next = w._next
    _agents(late, duration / 2, 0.2)
    for request in late.finish(duration / 2):
        w._requests.append(
            TraceRequest(request.seconds + duration / 2, request.prompt, request.output, request.ids, w.block)
        )


KINDS: dict[str, Callable[[_Writer, float], None]] = {
    "chats": _chats,
    "shared-prompts": _shared_prompts,
    "agents": _agents,
    "batch": _batch,
    "documents": _documents,
    "mixture": _mixture,
    "shift": _shift,
}


def generate(kind: str, duration_seconds: float = 3600, seed: int = 0, block: int = BLOCK) -> list[TraceRequest]:
    """A trace of one of ``KINDS``, always the same for the same arguments. ``block``: tokens that an id stands for."""
    writer = _Writer(seed, block)
    KINDS[kind](writer, duration_seconds)
    return writer.finish(duration_seconds)
