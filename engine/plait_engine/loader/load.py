"""A model folder to a model on a device."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plait_engine.layer_plan import text_config
from plait_engine.loader.random import randomise
from plait_engine.loader.weights import Progress, load_weights
from plait_engine.models.base import Model
from plait_engine.models.config import ConfigError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{folder} is not a model folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return config


def checkpoint_dtype(config: dict[str, Any]) -> torch.dtype:
    """The dtype that config.json says the weights have; bfloat16 when it says nothing."""
    text = text_config(config)
    named = next((c[key] for c in (text, config) for key in ("dtype", "torch_dtype") if c.get(key)), "bfloat16")
    try:
        return DTYPES[str(named).removeprefix("torch.")]
    except KeyError:
        raise ConfigError(f"dtype in config.json is {named!r}; supported: {', '.join(DTYPES)}") from None


def allocate(model: Model, device: torch.device) -> None:
    """Move a model from the meta device to ``device``; its weights are anything yet.

    ``to_empty`` would import torch's shape algebra, which is half a second of each start.
    """
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            there = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            setattr(module, name, nn.Parameter(there, requires_grad=False))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def fill_model(
    model: Model, folder: Path | None, device: torch.device, *, seed: int = 0, progress: Progress | None = None
) -> Model:
    """Move a model from the meta device to ``device`` and load its weights; random ones where ``folder`` is None."""
    allocate(model, device)
    return load(model, folder, seed=seed, progress=progress)


def load(model: Model, folder: Path | None, *, seed: int = 0, progress: Progress | None = None) -> Model:
    """The weights of a model that is on its device already."""
    if folder is None:
        randomise(model, seed)
    else:
        load_weights(model, folder, progress)
    model.finish_loading()
    return model
