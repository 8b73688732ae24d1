"""Tiny random checkpoints of every architecture, made with transformers, and its logits for them: the models' truth.

Parameters are moved away from their initial values, so that one that is left out or swapped changes the logits.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FULL, SLIDING, LINEAR, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"

COMMON = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GRANITE = COMMON | {
    "intermediate_size": 32,
    "shared_intermediate_size": 48,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.1,
    "tie_word_embeddings": True,
    "position_embedding_type": None,
}
QWEN = COMMON | {
    "head_dim": 16,
    "intermediate_size": 96,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
GEMMA = COMMON | {
    "num_hidden_layers": 6,
    "head_dim": 16,
    "intermediate_size": 96,
    "query_pre_attn_scalar": 20,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "tie_word_embeddings": True,
    "rope_parameters": {
        FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}
LFM2 = COMMON | {
    "intermediate_size": 96,
    "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 16,
    "conv_L_cache": 3,
    "layer_types": [CONV, CONV, FULL, CONV],
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}

SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "granite_dense": ("granitemoehybrid", GRANITE | {"num_local_experts": 0, "num_experts_per_tok": 0}),
    "granite_moe": ("granitemoehybrid", GRANITE | {"tie_word_embeddings": False}),
    "granite_rope": ("granitemoehybrid", GRANITE | {"position_embedding_type": "rope", "attention_bias": True}),
    "qwen3_5": ("qwen3_5_text", QWEN),
    "qwen3_5_moe": ("qwen3_5_moe_text", QWEN | MOE),
    "qwen3_5_nested": ("qwen3_5", {"text_config": QWEN, "vision_config": VISION, "tie_word_embeddings": True}),
    "qwen3_next": ("qwen3_next", QWEN | MOE | {"mlp_only_layers": [1]}),
    "gemma3": ("gemma3_text", GEMMA | {"final_logit_softcapping": 3.0}),
    "lfm2": ("lfm2", LFM2),
}
"""Name of the golden model to ``model_type`` and configuration."""


@dataclass(frozen=True)
class Golden:
    """A checkpoint as a Hugging Face folder, and the model that wrote it, in fp32."""

    name: str
    folder: Path
    model: Any

    @cache  # noqa: B019  (a handful of them, for the whole session)
    def prompt(self, tokens: int, seed: int = 0) -> Tensor:
        """Random token ids ``[tokens]``, no special ones among them."""
        return torch.randint(3, COMMON["vocab_size"], (tokens,), generator=torch.Generator().manual_seed(seed))

    @cache  # noqa: B019
    def logits(self, tokens: int, seed: int = 0) -> Tensor:
        """fp32 logits ``[tokens, vocab]`` that transformers has for that prompt, whole and without a cache."""
        return reference_logits(self.model, self.prompt(tokens, seed))


def reference_logits(model: Any, token_ids: Tensor) -> Tensor:
    with quiet(), torch.no_grad():
        logits: Tensor = model(input_ids=token_ids[None], use_cache=False).logits[0].float()
    return logits


@contextmanager
def quiet() -> Iterator[None]:
    """transformers warns of kernels that it lacks and of its own deprecated code; neither is ours to mend."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_golden(name: str, folder: Path, **overrides: Any) -> Golden:
    """Build the model, perturb it, save it to ``folder``. ``overrides`` replace values of the configuration."""
    model_type, values = SPECS[name]
    with quiet():
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.utils import logging

        logging.disable_progress_bar()
        config = CONFIG_MAPPING[model_type](**(values | overrides))
        factory = AutoModelForImageTextToText if "text_config" in values else AutoModelForCausalLM
        torch.manual_seed(0)
        model = factory.from_config(config, attn_implementation="eager").eval()
        perturb(model)
        model.save_pretrained(folder)
    return Golden(name, folder, model)


def perturb(model: torch.nn.Module, seed: int = 1) -> None:
    """Move every parameter. ``A_log`` moves to slow decay, so that the state carries far (SENSITIVE)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                parameter.copy_(-2.0 + 0.5 * noise)
            else:
                parameter.add_((0.1 if parameter.dim() == 1 else 0.05) * noise)


def from_folder(golden: Golden, dtype: torch.dtype) -> Any:
    """transformers' model of the same checkpoint in another dtype."""
    with quiet():
        return type(golden.model).from_pretrained(golden.folder, dtype=dtype, attn_implementation="eager").eval()
