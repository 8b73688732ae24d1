"""Checksums: on the processor they are taken row by row, and are the number that all rows at once would give."""

import pytest
import torch

from plait_engine.state.arena import Arena
from plait_engine.state.spec import Granule
from plait_engine.state.unit_copy import UnitCopier
from tests.engine.state.worlds import HYBRID, SLOT

UNIT = HYBRID[SLOT].unit_bytes
UNITS = [Granule(UNIT // 256 * place) for place in (3, 0, 7)]


@pytest.fixture
def arena() -> Arena:
    made = Arena(10 * UNIT, torch.device("cpu"))
    made.bytes.copy_(torch.randint(0, 256, made.bytes.shape, generator=torch.Generator().manual_seed(1)))
    return made


def checksum(arena: Arena) -> int:
    return int(UnitCopier(arena, HYBRID).checksum({SLOT: UNITS}))


def test_a_checksum_weighs_every_word_by_its_place(arena: Arena) -> None:
    words = arena.units(UNIT, torch.int64)[torch.tensor(UNITS)].flatten()
    assert checksum(arena) == int((words * torch.arange(1, 2 * len(words), 2)).sum())


def test_any_flipped_bit_changes_it(arena: Arena) -> None:
    before = checksum(arena)
    for unit in UNITS:
        for offset in (0, 7, UNIT // 2, UNIT - 1):
            arena.bytes[256 * unit + offset] ^= 64
            assert checksum(arena) != before
            arena.bytes[256 * unit + offset] ^= 64
    assert checksum(arena) == before


def test_words_in_one_anothers_place_change_it_within_a_row_and_between_rows(arena: Arena) -> None:
    before, words = checksum(arena), arena.units(UNIT, torch.int64)
    for (row_a, a), (row_b, b) in [((3, 0), (3, 1)), ((3, 1), (0, 0)), ((0, 5), (7, 5)), ((7, 0), (3, 2))]:
        one, other = (row_a * (UNIT // 256), a), (row_b * (UNIT // 256), b)
        held = words[one].clone(), words[other].clone()
        words[one], words[other] = held[1], held[0]
        assert checksum(arena) != before
        words[one], words[other] = held[0], held[1]
    assert checksum(arena) == before
