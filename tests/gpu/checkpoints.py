"""Tiny checkpoints that any machine makes alike: each value is a hash of its tensor's name and its place.

So a golden file holds a configuration, the names and shapes of the tensors, and logits, but no weights.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

FOLDER = Path(__file__).parent / "golden"
PROMPT_TOKENS = 48
PROMPT_SEED = 7


def hashed(name: str, count: int) -> NDArray[np.float32]:
    """``count`` values in [-1.7, 1.7], of unit variance: SplitMix64 of (name, place)."""
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 24)
        z = z * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    return (unit * 2 - 1) * np.float32(3**0.5)


def weight(name: str, shape: list[int], base: float) -> Tensor:
    """Norms and biases about ``base``; decays slow, so that the state carries far; matrices small. bf16 holds them."""
    noise = torch.from_numpy(hashed(name, int(np.prod(shape)))).reshape(shape)
    middle, spread = (-2.0, 0.5) if name.endswith("A_log") else (base, 0.1 if len(shape) == 1 else 0.07)
    return (middle + spread * noise).bfloat16().float()


def prompt(vocab: int) -> list[int]:
    """Token ids from 3 on."""
    return [3 + int(abs(value) * 1e6) % (vocab - 3) for value in hashed(f"prompt {PROMPT_SEED}", PROMPT_TOKENS)]


def write_checkpoint(config: dict[str, Any], tensors: dict[str, dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    values = {name: weight(name, spec["shape"], spec["base"]) for name, spec in tensors.items()}
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def stored(name: str) -> tuple[dict[str, Any], Tensor]:
    """(what the JSON holds, fp32 logits ``[PROMPT_TOKENS, vocab]``)."""
    about: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return about, load_file(FOLDER / f"{name}.safetensors")["logits"]
