"""What a form of a scan that works in blocks promises to the bit."""

import dataclasses

import torch
from torch import Tensor

from plait_kernels.segments import Room
from plait_kernels.select import Kernels
from tests.kernels.scans import Scan
from tests.kernels.test_scans import Stage, part
from tests.kernels.world import Piece


def nothing_of_others_reaches_a_sequence(kernels: Kernels, scan: Scan) -> None:
    """Its last block reads beside it: no NaN comes from there, and no bit depends on who is in the step."""
    pair, alone = Stage(scan, [], [Piece(2, 37), Piece(4, 5)]), Stage(scan, [], [Piece(2, 37)])
    beside = pair.inputs(torch.bfloat16)
    for tensor in beside.values():
        tensor[37:] = float("nan")
    alone.view[int(alone.slots.rows[0])] = pair.view[int(pair.slots.rows[0])]
    seen, state = outcome(kernels, pair, beside)
    single, state_alone = outcome(kernels, alone, part(beside, 0, 37))
    assert torch.isfinite(single.float()).all()
    assert torch.equal(seen[:37], single)
    assert torch.equal(state, state_alone)


def room_for_more_changes_nothing(kernels: Kernels, scan: Scan, longer: list[Piece]) -> None:
    """As recorded steps have it: tables of a fixed size, whose rest names a sequence without tokens."""
    plain, roomy = (Stage(scan, [Piece(5, 1)], [*longer, Piece(0, 0)]) for _ in range(2))
    room = Room(len(plain.segments.chunks) + 3, 200)
    roomy.segments = dataclasses.replace(roomy.segments, room=room)
    inputs = plain.inputs(torch.bfloat16)
    assert torch.equal(outcome(kernels, plain, inputs)[0], outcome(kernels, roomy, inputs)[0])
    assert torch.equal(plain.memory.bytes, roomy.memory.bytes)


def outcome(kernels: Kernels, stage: Stage, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Outputs, and the first sequence's state."""
    out = stage.scan.run(kernels, inputs, stage.view, stage.slots, stage.segments)
    return out, stage.view[int(stage.slots.rows[0])].clone()
