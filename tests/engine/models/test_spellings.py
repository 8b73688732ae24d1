"""One model, stored the way that other versions of the same tools store it: the same logits."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.models.driver import Driver, load
from tests.golden import FULL, SLIDING, Golden, make_golden

Goldens = Callable[[str], Golden]
Rename = Callable[[str], str]


def respelled(
    golden: Golden,
    folder: Path,
    *,
    rename: Rename = str,
    config: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    add: dict[str, Tensor] | None = None,
) -> Path:
    """A copy with other names in the weights, and keys of config.json replaced or dropped."""
    shutil.copytree(golden.folder, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    save_file({rename(k): v for k, v in weights.items()} | (add or {}), folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    values = {k: v for k, v in values.items() if k not in drop} | (config or {})
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def assert_same_logits(folder: Path, golden: Golden) -> None:
    driver = Driver(load(folder))
    (logits,) = driver.run([(driver.sequence(), golden.prompt(33))])
    torch.testing.assert_close(logits, golden.logits(33), rtol=0, atol=1e-4)


def test_granite_experts_under_their_first_names(goldens: Goldens, tmp_path: Path) -> None:
    def rename(name: str) -> str:
        return (
            name.replace("experts.gate_up_proj", "input_linear.weight")
            .replace("experts.down_proj", "output_linear.weight")
            .replace("router.weight", "router.layer.weight")
        )

    def rename_back(name: str) -> str:
        return (
            name.replace("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj")
            .replace("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj")
            .replace("router.layer.weight", "router.weight")
        )

    golden = goldens("granite_moe")
    for number, way in enumerate((rename, rename_back)):
        assert_same_logits(respelled(golden, tmp_path / str(number), rename=way), golden)


def test_granite_layers_and_head_width_under_older_keys(goldens: Goldens, tmp_path: Path) -> None:
    golden = goldens("granite_rope")
    kinds = ["mamba", "mamba", "attention", "mamba"]
    config = {"layers_block_type": kinds, "mamba_d_head": "auto", "rope_theta": 10000.0, "rope_scaling": None}
    folder = respelled(golden, tmp_path, config=config, drop=("layer_types", "rope_parameters", "time_step_limit"))
    assert_same_logits(folder, golden)


@pytest.mark.parametrize("name", ["qwen3_5_moe", "qwen3_next"])
def test_qwen_experts_stacked_and_one_by_one(goldens: Goldens, tmp_path: Path, name: str) -> None:
    golden = goldens(name)
    weights = load_file(golden.folder / "model.safetensors")
    other = {k: v for k, v in weights.items() if ".experts." not in k}
    for key, value in golden.model.state_dict().items():
        if ".experts." in key:
            other[key] = value.contiguous()
    assert other.keys() != weights.keys()
    shutil.copytree(golden.folder, tmp_path, dirs_exist_ok=True)
    save_file(other, tmp_path / "model.safetensors")
    assert_same_logits(golden.folder, golden)
    assert_same_logits(tmp_path, golden)


def test_qwen_with_an_interval_for_its_layers_and_older_rotary_keys(goldens: Goldens, tmp_path: Path) -> None:
    golden = goldens("qwen3_5")
    config = {"full_attention_interval": 4, "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    folder = respelled(golden, tmp_path, config=config, drop=("layer_types", "rope_parameters"))
    assert_same_logits(folder, golden)


def test_qwen_with_layers_for_several_tokens_at_once_ignores_them(goldens: Goldens, tmp_path: Path) -> None:
    golden = goldens("qwen3_next")
    assert_same_logits(respelled(golden, tmp_path, add={"mtp.fc.weight": torch.zeros(2, 2)}), golden)


def test_gemma_rotary_and_window_pattern_under_older_keys(goldens: Goldens, tmp_path: Path) -> None:
    golden = goldens("gemma3")
    config = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    }
    drop = ("layer_types", "rope_parameters", "_sliding_window_pattern")
    assert_same_logits(respelled(golden, tmp_path, config=config, drop=drop), golden)


@pytest.mark.parametrize("body", ["model.language_model.", "language_model.model."])
def test_gemma_inside_a_multimodal_checkpoint(goldens: Goldens, tmp_path: Path, body: str) -> None:
    golden = goldens("gemma3")
    text = json.loads((golden.folder / "config.json").read_text())
    add = {
        "vision_tower.x": torch.zeros(1),
        "model.vision_tower.x": torch.zeros(1),
        "multi_modal_projector.y": torch.zeros(1),
    }
    folder = respelled(golden, tmp_path, rename=lambda name: body + name.removeprefix("model."), add=add)
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    assert_same_logits(folder, golden)


def test_an_untied_head_inside_a_multimodal_checkpoint(goldens: Goldens, tmp_path: Path) -> None:
    golden = goldens("qwen3_5")
    text = json.loads((golden.folder / "config.json").read_text())
    folder = respelled(golden, tmp_path, rename=lambda name: f"language_model.{name}")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    assert_same_logits(folder, golden)


def test_lfm2_attention_layers_by_index(goldens: Goldens, tmp_path: Path) -> None:
    golden = goldens("lfm2")
    config = {"full_attn_idxs": [2], "block_ff_dim": 96}
    assert_same_logits(respelled(golden, tmp_path, config=config, drop=("layer_types", "intermediate_size")), golden)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("granite_dense", {"layer_types": ["attention"] * 4}),
        ("granite_dense", {"mamba_conv_bias": False, "mamba_proj_bias": True, "mamba_n_groups": 1}),
        ("granite_dense", {"mamba_d_conv": 2, "time_step_limit": [0.5, 0.9]}),
        ("qwen3_5", {"linear_num_value_heads": 2, "linear_conv_kernel_dim": 3, "attention_bias": True}),
        ("qwen3_next", {"linear_num_value_heads": 8, "norm_topk_prob": False, "decoder_sparse_step": 2}),
        ("qwen3_5_moe", {"num_experts_per_tok": 1, "tie_word_embeddings": True}),
        ("gemma3", {"num_key_value_heads": 1, "final_logit_softcapping": None, "tie_word_embeddings": False}),
        ("gemma3", {"rope_parameters": {k: {"rope_type": "default", "rope_theta": 1e4} for k in (FULL, SLIDING)}}),
        ("lfm2", {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False}),
        ("lfm2", {"tie_word_embeddings": False, "block_ffn_dim_multiplier": 1.5}),
    ],
)
def test_other_settings_of_an_architecture(tmp_path: Path, name: str, overrides: dict[str, Any]) -> None:
    golden = make_golden(name, tmp_path, **overrides)
    driver = Driver(load(tmp_path))
    sequence = driver.sequence()
    logits = torch.cat([driver.run([(sequence, chunk)])[0] for chunk in golden.prompt(33).split(9)])
    torch.testing.assert_close(logits, golden.logits(33), rtol=0, atol=1e-4)


def test_capped_attention_scores_reach_the_kernel(goldens: Goldens, tmp_path: Path) -> None:
    """transformers' Gemma 3 ignores the key, so only that it has its effect can be shown."""
    golden = goldens("gemma3")
    driver = Driver(load(respelled(golden, tmp_path, config={"attn_logit_softcapping": 0.05})))
    (logits,) = driver.run([(driver.sequence(), golden.prompt(33))])
    assert (logits - golden.logits(33)).abs().max() > 0.01
