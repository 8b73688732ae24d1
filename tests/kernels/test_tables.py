"""Tables of recorded steps: of one size whatever a step holds, refilled with what a fresh step would say."""

import dataclasses

import pytest
import torch

from plait_kernels.recording import NotReplayableError
from plait_kernels.segments import Room, Segments
from plait_kernels.tables import query_tiles, refill, scan_table
from tests.kernels.world import Piece, segments_of

TOKENS, PIECES = 96, 5
ROOM = Room(chunks=7, history=200)
STEPS = {
    "one long prompt": [Piece(0, 96)],
    "three and padding": [Piece(9, 50, cuts=(20, 33), emits=(0, 1)), Piece(0, 5), Piece(3, 1), Piece(0, 40)],
    "two alike": [Piece(0, 48), Piece(0, 48)],
}


def step(name: str) -> Segments:
    pieces = STEPS[name]
    void = [Piece(0, 0)] * (PIECES - len(pieces))
    return dataclasses.replace(segments_of([Piece(4, 1), Piece(0, 1)], [*pieces, *void]), room=ROOM)


def tables(segments: Segments) -> list[torch.Tensor]:
    scan = scan_table(segments, 16)
    return [scan.rows, scan.groups, scan.blocks, query_tiles(segments, 8)]


@pytest.mark.parametrize("recorded", STEPS)
@pytest.mark.parametrize("fresh", STEPS)
def test_refilled_tables_are_those_of_the_fresh_step(recorded: str, fresh: str) -> None:
    own, other = step(recorded), step(fresh)
    held = tables(own)
    refill(own, other)
    for ours, theirs in zip(held, tables(other), strict=True):
        assert torch.equal(ours, theirs)
    assert all(a is b for a, b in zip(held, tables(own), strict=True))


@pytest.mark.parametrize("name", STEPS)
def test_what_is_left_over_names_the_sequence_without_tokens(name: str) -> None:
    segments = step(name)
    plain = dataclasses.replace(segments, room=None)
    void = segments.sequences - 1
    assert segments.starts_host[void] == segments.starts_host[void + 1]
    for roomy, tight in zip(tables(segments), tables(plain), strict=True):
        assert torch.equal(roomy[: len(tight)], tight)
    rows, groups = scan_table(segments, 16).rows, scan_table(segments, 16).groups
    assert {int(row[3]) for row in rows if row[0] == row[1]} <= {void}
    assert {int(group[2]) for group in groups if group[0] == group[1]} <= {void}


def test_no_table_is_built_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays would bring it again, over what ``refill`` put there."""
    segments = step("one long prompt")
    held = query_tiles(segments, 8)
    monkeypatch.setattr("plait_kernels.tables._capturing", lambda _: True)
    assert query_tiles(segments, 8) is held
    with pytest.raises(NotReplayableError):
        scan_table(segments, 16)
