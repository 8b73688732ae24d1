"""Layer kinds from config.json: every spelling, and a table instead of a guess (CASES 47)."""

import re
from typing import Any

import pytest
import torch

from plait_engine.layer_plan import LayerPlan, LayerPlanError, ModelPlan, describe, layer_kinds
from plait_engine.state.spec import PagedSpec, SlotSpec, TensorSpec

FULL, SLIDING, LINEAR, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"
ALL = frozenset({FULL, SLIDING, LINEAR, CONV, "mlp", "moe"})


def kinds(layers: int, **config: Any) -> tuple[str, ...]:
    return layer_kinds({"num_hidden_layers": layers} | config, ALL)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"layer_types": [LINEAR, FULL, SLIDING, CONV]}, (LINEAR, FULL, SLIDING, CONV)),
        ({"layer_types": ["mamba", "attention", "mamba2", "recurrent"]}, (LINEAR, FULL, LINEAR, LINEAR)),
        ({"layers_block_type": ["mamba", "mamba", "attention", "mamba"]}, (LINEAR, LINEAR, FULL, LINEAR)),
        ({"hybrid_override_pattern": "M-*E"}, (LINEAR, "mlp", FULL, "moe")),
        ({"attn_layer_indices": [1, 3]}, (LINEAR, FULL, LINEAR, FULL)),
        ({"attn_layer_indices": []}, (LINEAR,) * 4),
        ({"full_attn_idxs": [2]}, (CONV, CONV, FULL, CONV)),
        ({"attn_layer_period": 3, "attn_layer_offset": 1}, (LINEAR, FULL, LINEAR, LINEAR)),
        ({"attn_layer_period": 2}, (FULL, LINEAR, FULL, LINEAR)),
        ({"full_attention_interval": 2}, (LINEAR, FULL, LINEAR, FULL)),
        ({"sliding_window": 8, "sliding_window_pattern": 3}, (SLIDING, SLIDING, FULL, SLIDING)),
        ({"sliding_window": 8, "_sliding_window_pattern": 4}, (SLIDING, SLIDING, SLIDING, FULL)),
        ({"sliding_window": 8, "sliding_window_pattern": "LLG"}, (SLIDING, SLIDING, FULL, SLIDING)),
    ],
)
def test_every_spelling_is_read(config: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert kinds(4, **config) == expected


def test_spellings_that_agree_are_accepted_together() -> None:
    given = {"layer_types": [LINEAR, LINEAR, "attention"], "full_attention_interval": 3, "attn_layer_indices": [2]}
    assert kinds(3, **given) == (LINEAR, LINEAR, FULL)


def test_null_is_the_same_as_absent() -> None:
    assert kinds(2, layer_types=None, full_attention_interval=2) == (LINEAR, FULL)


def test_kinds_of_a_nested_language_model_are_read() -> None:
    text = {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL]}
    assert layer_kinds({"num_hidden_layers": 9, "text_config": text}, ALL) == (LINEAR, FULL)


def test_the_wrapper_may_not_contradict_the_nested_language_model() -> None:
    config = {"text_config": {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL]}, "layer_types": [FULL, LINEAR]}
    with pytest.raises(LayerPlanError, match=r"text_config\.layer_types and layer_types disagree"):
        layer_kinds(config, ALL)


def test_disagreeing_spellings_are_refused_with_the_table() -> None:
    with pytest.raises(LayerPlanError) as refused:
        kinds(3, layer_types=[LINEAR, LINEAR, FULL], full_attention_interval=2)
    message = str(refused.value)
    assert "layer_types and full_attention_interval disagree" in message
    lines = [re.split(r"\s{2,}", line) for line in message.splitlines()[1:]]
    assert lines == [
        ["index", "layer_types", "full_attention_interval"],
        ["0", LINEAR, LINEAR],
        ["1", LINEAR, FULL],
        ["2", FULL, LINEAR],
    ]


def test_absent_kinds_are_refused() -> None:
    with pytest.raises(LayerPlanError, match="does not say what its 3 layers are; it needs one of layer_types"):
        kinds(3)


def test_a_window_width_alone_does_not_say_which_layers_have_it() -> None:
    with pytest.raises(LayerPlanError, match="does not say"):
        kinds(3, sliding_window=1024)


@pytest.mark.parametrize("listed", [[LINEAR], [LINEAR] * 3])
def test_a_list_of_another_length_is_refused_with_the_table(listed: list[str]) -> None:
    with pytest.raises(LayerPlanError, match=rf"names {len(listed)} layers, but num_hidden_layers is 2\nindex "):
        kinds(2, layer_types=listed)


def test_an_index_behind_the_last_layer_is_refused() -> None:
    with pytest.raises(LayerPlanError, match="attn_layer_indices names 6 layers"):
        kinds(4, attn_layer_indices=[1, 5])


def test_an_unknown_kind_is_refused_with_the_table() -> None:
    with pytest.raises(LayerPlanError) as refused:
        kinds(2, layer_types=[LINEAR, "warp_attention"])
    assert "unknown to this architecture: warp_attention" in str(refused.value)
    assert re.search(r"^1 +warp_attention$", str(refused.value), re.M)


def test_a_kind_that_the_architecture_does_not_implement_is_refused() -> None:
    with pytest.raises(LayerPlanError, match=r"unknown to this architecture: mamba; known: full_attention"):
        layer_kinds({"num_hidden_layers": 1, "layer_types": ["mamba"]}, frozenset({FULL}))


@pytest.mark.parametrize("count", [None, 0, -1, "4", True, 2.0])
def test_a_layer_count_that_is_none_is_refused(count: object) -> None:
    with pytest.raises(LayerPlanError, match="num_hidden_layers"):
        layer_kinds({"num_hidden_layers": count, "layer_types": [FULL]}, ALL)


@pytest.mark.parametrize(
    "config",
    [
        {"layer_types": 4},
        {"full_attention_interval": 0},
        {"full_attention_interval": [2]},
        {"attn_layer_indices": 3},
        {"attn_layer_indices": ["1"]},
        {"attn_layer_period": "2"},
        {"sliding_window_pattern": ""},
    ],
)
def test_a_spelling_of_the_wrong_type_is_named(config: dict[str, Any]) -> None:
    with pytest.raises(LayerPlanError, match=next(iter(config))):
        kinds(4, **config)


def test_the_plan_is_described_layer_by_layer() -> None:
    paged = PagedSpec(SLIDING, (TensorSpec("k", (2, 16), torch.bfloat16), TensorSpec("v", (2, 16), torch.bfloat16)), 8)
    slot = SlotSpec("mamba2", (TensorSpec("conv", (96, 3), torch.bfloat16), TensorSpec("ssm", (4, 8), torch.float32)))
    layers = (LayerPlan(0, LINEAR, "dense", (slot,)), LayerPlan(1, SLIDING, "moe", (paged,)))
    table = describe(ModelPlan.of(layers, page_size=4)).splitlines()
    assert [re.split(r"\s{2,}", line) for line in table] == [
        ["index", "kind", "mlp", "state", "bytes"],
        ["0", LINEAR, "dense", "conv[96,3]:bfloat16 ssm[4,8]:float32", "704 per slot"],
        ["1", SLIDING, "moe", "k[2,16]:bfloat16 v[2,16]:bfloat16 window 8", "128 per token"],
    ]


def test_a_layer_may_keep_pages_and_a_slot() -> None:
    paged = PagedSpec(FULL, (TensorSpec("k", (2, 16), torch.bfloat16),))
    slot = SlotSpec("mamba2", (TensorSpec("ssm", (4, 8), torch.float32),))
    plan = ModelPlan.of((LayerPlan(0, "hybrid", "dense", (paged, slot)),), page_size=4)
    assert [group.layers for group in plan.groups] == [(0,), (0,)]
    assert "64 per token, 128 per slot" in describe(plan)
