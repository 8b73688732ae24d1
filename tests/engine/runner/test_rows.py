"""The tables of a row say what its sequence owns, and nothing of who was there before."""

import random

import numpy as np

from plait_engine.request import Request, SamplingParams
from plait_engine.runner.rows import RowTables
from plait_engine.sequence import Sequence
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import Position
from tests.engine.scheduler.fake import HYBRID, fake_engine
from tests.engine.tiny import PAGE


def test_tables_follow_sequences_through_windows_growth_and_change_of_owner() -> None:
    ledger = fake_engine(slabs=200).ledger
    tables = RowTables(HYBRID, ledger.reserved, max_seqs=2, max_model_len=100)
    rng = random.Random(1)
    for life in range(20):
        state = SequenceState(HYBRID)
        sequence = Sequence(Request(id="", prompt=(1,), sampling=SamplingParams()), 0, life, state, row=life % 2)
        units = ledger.take(state.admission_demand(rng.randint(1, 30), 9))
        assert units is not None
        state.admit(units)
        tables.enter(sequence)
        position = 0
        while position < rng.randint(1, 100):
            step = rng.randint(1, min(9, 100 - position))
            state.pass_windows(Position(position), ledger)
            taken = ledger.take(state.growth_demand(position + step))
            assert taken is not None
            state.grow(position + step, taken)
            position += step
            tables.refresh(sequence)
            for group, run in state.runs.items():
                table = tables.pages[group][sequence.row]
                expected = np.full(len(table), ledger.reserved[group][0])
                expected[run.first : run.first + len(run.pages)] = run.pages
                assert (table == expected).all()
            for group, table in tables.slots.items():
                assert table[:, sequence.row].tolist() == state.slots[group]
                assert table[:, tables.padding_row].tolist() == ledger.reserved[group]
        assert position <= 100 + PAGE
        state.release(ledger)
    ledger.check()
