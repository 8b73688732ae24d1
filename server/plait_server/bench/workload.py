"""Kinds of load, each a row of sessions. The same seed makes the same load."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from plait_server.bench.session import Session, Turn
from plait_server.bench.words import Words

BLOCK_TOKENS = 512
"""Of a trace's block, which has one id wherever it occurs."""


class BadTrace(ValueError):
    """The message names the file and the line."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How much of what. Lengths are tokens."""

    sessions: int = 100
    input_tokens: int = 256
    output_tokens: int = 64
    spread: float = 0.0
    """Lengths vary by this share to both sides."""
    prefix_tokens: int = 1_024
    groups: int = 4
    """Different prefixes."""
    turns: int = 4
    trace: Path | None = None
    speed: float = 1.0
    """A trace goes by so many times as fast as it was recorded."""
    seed: int = 0


def random_load(shape: Shape, words: Words) -> Iterator[Session]:
    """Prompts that have nothing in common."""
    for number, length in lengths(shape):
        text = words.text(length(shape.input_tokens), f"{shape.seed}-{number}")
        yield Session((Turn(text, length(shape.output_tokens)),))


def shared_prefix_load(shape: Shape, words: Words) -> Iterator[Session]:
    """Each prompt begins with one of a few system prompts."""
    for session, number in zip(random_load(shape, words), range(shape.sessions), strict=True):
        yield session._replace(system=prefix(shape, words, number % shape.groups))


def multi_turn_load(shape: Shape, words: Words) -> Iterator[Session]:
    """Conversations: the system prompt is shared, each turn goes on from the answers before."""
    for number, length in lengths(shape):
        turns = tuple(
            Turn(words.text(length(shape.input_tokens), f"{shape.seed}-{number}-{turn}"), length(shape.output_tokens))
            for turn in range(shape.turns)
        )
        yield Session(turns, prefix(shape, words, number % shape.groups))


def trace_load(shape: Shape, words: Words) -> Iterator[Session]:
    """Arrivals, lengths and shared blocks as they were recorded, one JSON object a line: ``timestamp`` in milliseconds,
    ``input_length``, ``output_length`` and ``hash_ids``, an id per block of 512 tokens. Raises ``BadTrace``."""
    if shape.trace is None:
        raise BadTrace("give the file of the trace")
    with shape.trace.open() as lines:
        for number, line in zip(range(shape.sessions), lines, strict=False):
            try:
                request = json.loads(line)
                yield traced(request, shape, words)
            except (ValueError, KeyError, TypeError) as error:
                raise BadTrace(f"{shape.trace}, line {number + 1}: {error!r}") from error


def traced(request: Mapping[str, object], shape: Shape, words: Words) -> Session:
    left = int(str(request["input_length"]))
    blocks = []
    ids = request["hash_ids"]
    if not isinstance(ids, list):
        raise TypeError("hash_ids must be a list")
    for block in ids:
        blocks.append(words.text(min(left, BLOCK_TOKENS), f"{shape.seed}-block-{block}"))
        left -= BLOCK_TOKENS
    at = float(str(request["timestamp"])) / 1_000 / shape.speed
    return Session((Turn(" ".join(blocks), int(str(request["output_length"]))),), at=at)


def prefix(shape: Shape, words: Words, group: int) -> str:
    return words.text(shape.prefix_tokens, f"{shape.seed}-prefix-{group}")


def lengths(shape: Shape) -> Iterator[tuple[int, Callable[[int], int]]]:
    """For each session its number, and what lengths become in it."""
    for number in range(shape.sessions):
        chance = random.Random(f"{shape.seed}-lengths-{number}")

        def length(tokens: int, chance: random.Random = chance) -> int:
            return max(1, round(tokens * (1 + shape.spread * chance.uniform(-1, 1))))

        yield number, length


LOADS: Mapping[str, Callable[[Shape, Words], Iterator[Session]]] = {
    "random": random_load,
    "shared-prefix": shared_prefix_load,
    "multi-turn": multi_turn_load,
    "trace": trace_load,
}
