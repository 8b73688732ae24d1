"""Strict loading: every parameter filled exactly once and every tensor used, or an error with the lists."""

from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from plait_engine.loader.checkpoint import Checkpoint, WeightsError, find_checkpoint, listed, open_shard
from plait_engine.models.base import Model
from plait_engine.models.targets import Target

Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""

ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4}
"""The dtypes that are read, as safetensors names them."""


def load_weights(model: Model, folder: Path, progress: Progress | None = None) -> None:
    """Fill ``model``, which is on its device already, from the safetensors files of ``folder``, shard by shard.

    Tensors are converted and copied straight to their place, so at most one of them is in memory beside the model.
    """
    checkpoint = find_checkpoint(folder)
    targets = {target.name: target for target in model.targets(checkpoint.names)}
    mirrors = model.mirrors(checkpoint.names)
    total = _check(checkpoint, targets, mirrors, model.ignored)
    done = 0
    for path, names in checkpoint.shards.items():
        with open_shard(path) as shard, torch.no_grad():
            for name in names:
                if name in targets:
                    tensor: Tensor = shard.get_tensor(name)
                    targets[name].store(tensor)
                    done += tensor.nbytes
                    if progress is not None:
                        progress(done, total)
    _check_mirrors(checkpoint, mirrors)


def _check(
    checkpoint: Checkpoint, targets: dict[str, Target], mirrors: dict[str, Tensor], ignored: tuple[str, ...]
) -> int:
    """Names, shapes and dtypes, all before anything is loaded. Returns the bytes that will be read."""
    names = checkpoint.names
    wanted = targets.keys() | mirrors.keys()
    missing = sorted(targets.keys() - names)
    unexpected = sorted(name for name in names - wanted if not name.startswith(ignored))
    wrong: list[str] = []
    total = 0
    for path, shard_names in checkpoint.shards.items():
        with open_shard(path) as shard:
            for name in shard_names:
                if name not in wanted:
                    continue
                part = shard.get_slice(name)
                shape, dtype = tuple(part.get_shape()), part.get_dtype()
                expected = targets[name].shape if name in targets else tuple(mirrors[name].shape)
                if shape != expected:
                    wrong.append(f"{name} is {list(shape)}, not {list(expected)}")
                elif dtype not in ELEMENT_BYTES:
                    wrong.append(f"{name} is {dtype}, not one of {', '.join(ELEMENT_BYTES)}")
                else:
                    total += prod(shape) * ELEMENT_BYTES[dtype] if name in targets else 0
    lists = (("missing", missing), ("unexpected", unexpected), ("of wrong shape or dtype", sorted(wrong)))
    problems = [f"{text} ({len(found)}): {listed(found)}" for text, found in lists if found]
    if problems:
        raise WeightsError(f"weights in {checkpoint.folder} do not fit config.json; " + "; ".join(problems))
    return total


def _check_mirrors(checkpoint: Checkpoint, mirrors: dict[str, Tensor]) -> None:
    """A head that is declared tied but stored must be the embedding again."""
    for path, names in checkpoint.shards.items():
        for name in mirrors.keys() & set(names):
            with open_shard(path) as shard:
                stored = shard.get_tensor(name)
            expected = mirrors[name]
            if not torch.equal(stored.to(expected.device, expected.dtype), expected):
                raise WeightsError(f"{name} in {path} differs from the embedding although tie_word_embeddings is true")
