"""What layers keep: sizes, addresses, resume rules."""

import torch

from plait_engine.state.spec import ALIGN_BYTES, GRANULE_BYTES, PagedSpec, Position, SlotSpec, TensorSpec, group_specs

KV = (TensorSpec("k", (2, 16), torch.bfloat16), TensorSpec("v", (2, 16), torch.bfloat16))
FULL = PagedSpec("full_attention", KV)
WINDOW = PagedSpec("sliding_attention", KV, window=8)
MAMBA = SlotSpec("mamba2", (TensorSpec("conv", (5, 3), torch.bfloat16), TensorSpec("ssm", (3, 4, 4), torch.float32)))


def test_layers_with_equal_specs_form_one_group_in_order_of_appearance() -> None:
    groups = group_specs(((MAMBA,), (FULL,), (MAMBA,), (WINDOW,)), page_size=4)
    assert [g.layers for g in groups] == [(0, 2), (1,), (3,)]
    assert [g.id for g in groups] == [0, 1, 2]


def test_a_layer_may_carry_keys_and_values_and_a_state() -> None:
    groups = group_specs(((FULL, MAMBA), (MAMBA,)), page_size=4)
    assert [g.layers for g in groups] == [(0,), (0, 1)]


def test_a_page_holds_all_layers_of_its_group_and_every_tensor_is_aligned() -> None:
    (group,) = group_specs(((FULL,), (FULL,), (FULL,)), page_size=5)
    offsets = [group.offset_bytes(i, name) for i in range(3) for name in ("k", "v")]
    assert offsets == sorted(set(offsets))
    assert all(offset % ALIGN_BYTES == 0 for offset in offsets)
    assert group.unit_bytes % GRANULE_BYTES == 0
    assert group.unit_bytes >= offsets[-1] + 5 * 2 * 16 * 2


def test_a_slot_row_is_one_layer_and_a_slot_one_row_per_layer() -> None:
    (group,) = group_specs(((MAMBA,), (MAMBA,)), page_size=4)
    assert group.units_per_slot == 2
    assert group.offset_bytes(0, "ssm") == group.offset_bytes(1, "ssm") == ALIGN_BYTES


def test_full_attention_needs_everything_and_a_window_only_its_own_tokens() -> None:
    assert FULL.needed(Position(20)) == range(20)
    assert WINDOW.needed(Position(20)) == range(13, 20)
    assert WINDOW.needed(Position(3)) == range(3)
    assert WINDOW.needed(Position(7)) == range(7)
    assert WINDOW.needed(Position(8)) == range(1, 8)


def test_compressed_history_needs_only_closed_entries() -> None:
    spec = PagedSpec("compressed", KV, ratio=4)
    assert spec.needed(Position(11)) == range(2)
    assert spec.entries(11) == 2
