"""Which class implements which ``model_type`` of config.json."""

from importlib import import_module
from typing import Any

import torch

from plait_engine.layer_plan import text_config
from plait_engine.models.base import Model
from plait_engine.models.config import ConfigError
from plait_kernels.select import Kernels

ARCHITECTURES = {
    "granitemoehybrid": "GraniteMoeHybrid",
    "qwen3_5_text": "Qwen3_5Text",
    "qwen3_5_moe_text": "Qwen3_5MoeText",
    "qwen3_next": "Qwen3Next",
    "gemma3_text": "Gemma3Text",
    "lfm2": "Lfm2",
}
"""``model_type`` of the language model, which is also its file here, to its class."""

WRAPPERS = {"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Multimodal ``model_type`` to that of its language model, for a ``text_config`` that does not say."""


def model_class(config: dict[str, Any]) -> type[Model]:
    """The implementation for a config.json, or a ``ConfigError`` that lists what there is."""
    text = text_config(config)
    named = str(text.get("model_type") or config.get("model_type"))
    model_type = named if text is config else WRAPPERS.get(named, named)
    if model_type not in ARCHITECTURES:
        raise ConfigError(f"model_type {named!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    found: type[Model] = getattr(import_module(f"plait_engine.models.{model_type}"), ARCHITECTURES[model_type])
    return found


def build_model(
    config: dict[str, Any],
    *,
    dtype: torch.dtype,
    state_dtype: torch.dtype = torch.float32,
    page_size: int,
    kernels: Kernels,
    max_positions: int | None = None,
) -> Model:
    """The model on the meta device: its plan and its exact ``weights_bytes``, before a byte is allocated."""
    with torch.device("meta"):
        return (
            model_class(config)
            .from_config(
                config,
                dtype=dtype,
                state_dtype=state_dtype,
                page_size=page_size,
                kernels=kernels,
                max_positions=max_positions,
            )
            .eval()
        )
