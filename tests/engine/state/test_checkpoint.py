"""The life of a checkpoint: reserved, published, gone; and what it holds meanwhile."""

import pytest
import torch

from plait_engine.state.arena import Arena
from plait_engine.state.checkpoint import Checkpoint, Stage, StepReceipt, WindowPages
from plait_engine.state.ledger import Ledger
from plait_engine.state.pools import StateBug, choose_slab_bytes
from plait_engine.state.spec import GroupId, PagedSpec, Position, SlotSpec, TensorSpec, group_specs

KV = (TensorSpec("k", (16,), torch.bfloat16), TensorSpec("v", (16,), torch.bfloat16))
GROUPS = group_specs(
    (
        (PagedSpec("sliding_attention", KV, window=8),),
        (SlotSpec("mamba2", (TensorSpec("ssm", (8, 8), torch.float32),)),),
        (SlotSpec("mamba2", (TensorSpec("ssm", (8, 8), torch.float32),)),),
    ),
    page_size=4,
)
WINDOW, SLOT = (g.id for g in GROUPS)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Arena(32 * choose_slab_bytes(GROUPS), torch.device("cpu")), GROUPS)


def reserved(ledger: Ledger, windows: dict[GroupId, WindowPages] | None = None) -> Checkpoint:
    rows = ledger.take({SLOT: 2})
    assert rows is not None
    return Checkpoint(Position(10), "layout", rows, windows or {})


def test_a_reserved_checkpoint_owns_its_rows(ledger: Ledger) -> None:
    checkpoint = reserved(ledger)
    assert checkpoint.stage is Stage.RESERVED
    assert checkpoint.receipt is None
    ledger.check([checkpoint.owned()])
    checkpoint.discard(ledger)
    ledger.check()


def test_publishing_takes_the_receipt_of_the_step_that_wrote_it(ledger: Ledger) -> None:
    checkpoint = reserved(ledger)
    checksum = torch.tensor(123)
    checkpoint.publish(StepReceipt(7), checksum)
    assert (checkpoint.stage, checkpoint.receipt) == (Stage.PUBLISHED, 7)
    assert checkpoint.checksum is checksum
    with pytest.raises(StateBug, match="again"):
        checkpoint.publish(StepReceipt(8), None)


def test_it_shares_the_window_pages_of_the_sequence_that_wrote_them(ledger: Ledger) -> None:
    pages = ledger.take({WINDOW: 3})
    assert pages is not None
    ledger.share(WINDOW, pages[WINDOW][1:])
    checkpoint = reserved(ledger, {WINDOW: WindowPages(1, tuple(pages[WINDOW][1:]))})
    checkpoint.publish(StepReceipt(1), None)
    ledger.check([pages, checkpoint.owned()])
    ledger.give_back(WINDOW, pages[WINDOW])
    ledger.check([checkpoint.owned()])
    checkpoint.discard(ledger)
    ledger.check()


def test_it_is_not_discarded_under_a_lease(ledger: Ledger) -> None:
    checkpoint = reserved(ledger)
    checkpoint.leases = 1
    with pytest.raises(StateBug, match="1 leases"):
        checkpoint.discard(ledger)
    assert checkpoint.stage is Stage.RESERVED
    ledger.check([checkpoint.owned()])


def test_what_is_gone_owns_nothing_and_is_never_published(ledger: Ledger) -> None:
    checkpoint = reserved(ledger)
    checkpoint.discard(ledger)
    assert checkpoint.owned() == {}
    with pytest.raises(StateBug, match="gone"):
        checkpoint.publish(StepReceipt(1), None)
    checkpoint.discard(ledger)
    ledger.check()


def test_its_bytes_are_those_of_its_rows(ledger: Ledger) -> None:
    assert reserved(ledger).bytes_in(ledger) == 2 * GROUPS[SLOT].unit_bytes
