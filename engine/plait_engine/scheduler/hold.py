"""Waiting for a prefix that somebody else is computing right now, instead of computing it again.

The same for ``n > 1``, identical prompts and shared prefixes: the follower stays in the queue while its leader runs
towards the last position that both have in common, and looks up again once that is committed, or the leader gone. The
tree never holds anything pending.
"""

from collections.abc import Iterable

from plait_engine.sequence import Sequence
from plait_engine.state.node import common_prefix
from plait_engine.state.resume_point import Match
from plait_engine.state.spec import Position

LEAST_GAIN = 16
"""Tokens that waiting must save: for fewer, computing them at once is sooner done."""


def hold_for(sequence: Sequence, running: Iterable[Sequence], match: Match) -> bool:
    """Whether ``sequence`` is better off waiting. The leader is told to leave a checkpoint where they part."""
    found = match.best.position if match.best else 0
    for leader in running:
        if leader.finish is not None or leader.tainted or leader.namespace != sequence.namespace:
            continue
        target = _meeting_point(leader, sequence)
        if target is not None and target >= found + LEAST_GAIN:
            return True
    return False


def _meeting_point(leader: Sequence, sequence: Sequence) -> Position | None:
    """The last position on the way of ``leader`` from which ``sequence`` can go on, if it is still ahead."""
    if leader.state.position >= leader.prompt_length or leader.state.position >= sequence.length:
        return None
    common = min(
        common_prefix(leader.prompt_tokens, sequence.prompt_tokens), sequence.length - 1, leader.prompt_length - 1
    )
    if common <= leader.state.position:
        return None
    if leader.scheduled < common:
        if common not in leader.marks:
            leader.marks = sorted([*leader.marks, Position(common)])
        return Position(common)
    # The leader is past it already: a checkpoint that a launched step leaves below may still help.
    return max((p for p in leader.emitting if leader.state.position < p <= common), default=None)
