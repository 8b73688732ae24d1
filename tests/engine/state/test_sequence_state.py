"""What one sequence owns while it grows, passes its window, and ends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Ledger
from plait_engine.state.pools import StateBug, choose_slab_bytes
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import PagedSpec, Position, SlotSpec, TensorSpec, group_specs

KV = (TensorSpec("k", (2, 16), torch.bfloat16), TensorSpec("v", (2, 16), torch.bfloat16))
GROUPS = group_specs(
    (
        (PagedSpec("full_attention", KV),),
        (PagedSpec("sliding_attention", KV, window=8),),
        (SlotSpec("mamba2", (TensorSpec("ssm", (3, 8, 8), torch.float32),)),),
    ),
    page_size=4,
)
FULL, WINDOW, SLOT = (g.id for g in GROUPS)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Arena(64 * choose_slab_bytes(GROUPS), torch.device("cpu")), GROUPS)


def admitted(ledger: Ledger, prompt: int, max_chunk: int) -> SequenceState:
    state = SequenceState(GROUPS)
    units = ledger.take(state.admission_demand(prompt, max_chunk))
    assert units is not None
    state.admit(units)
    return state


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 80), st.integers(1, 20), st.data())
def test_an_admitted_prompt_never_needs_more_than_it_took(prompt: int, max_chunk: int, data: st.DataObject) -> None:
    ledger = Ledger(Arena(64 * choose_slab_bytes(GROUPS), torch.device("cpu")), GROUPS)
    state = admitted(ledger, prompt, max_chunk)
    done = 0
    while done < prompt:
        count = data.draw(st.integers(1, min(max_chunk, prompt - done)))
        state.pass_windows(Position(done), ledger)
        assert state.growth_demand(done + count) == {}
        state.grow(done + count, {})
        state.advance(Position(done), count)
        done += count
        window = state.runs[WINDOW]
        needed = window.spec.needed(Position(max(0, done - 1)))
        assert window.first * 4 <= needed.start
        assert (window.first + len(window.pages)) * 4 >= done
        ledger.check([state.owned()])
    state.release(ledger)
    ledger.check()


def test_a_long_decode_keeps_a_bounded_number_of_window_pages(ledger: Ledger) -> None:
    state = admitted(ledger, 5, 8)
    state.grow(5, {})
    for position in range(5, 120):
        state.pass_windows(Position(position), ledger)
        units = ledger.take(state.growth_demand(position + 1))
        assert units is not None
        state.grow(position + 1, units)
    assert len(state.owned()[WINDOW]) <= 4
    assert len(state.owned()[FULL]) == 30
    ledger.check([state.owned()])


def test_a_page_that_the_next_token_still_sees_is_not_dropped(ledger: Ledger) -> None:
    state = admitted(ledger, 12, 12)
    state.grow(12, {})
    state.pass_windows(Position(10), ledger)  # sees 3..9
    assert state.runs[WINDOW].first == 0
    state.pass_windows(Position(11), ledger)  # sees 4..10
    assert state.runs[WINDOW].first == 1


def test_a_step_from_the_wrong_position_is_caught(ledger: Ledger) -> None:
    state = admitted(ledger, 9, 9)
    state.advance(Position(0), 4)
    with pytest.raises(StateBug, match="position 3"):
        state.advance(Position(3), 1)
    assert state.position == 4


def test_release_gives_everything_back_and_starts_over(ledger: Ledger) -> None:
    state = admitted(ledger, 9, 9)
    state.grow(9, {})
    state.advance(Position(0), 9)
    state.release(ledger)
    assert state.position == 0
    assert not any(state.owned().values())
    ledger.check()
