"""The safetensors files of a model folder, and which tensor lies in which. Nothing is read but the headers."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class WeightsError(ValueError):
    """The weights are missing or broken, or do not fit the model that config.json describes."""


@dataclass(frozen=True)
class Checkpoint:
    """``shards``: tensor names by file, in the order in which they are to be read."""

    folder: Path
    shards: dict[Path, tuple[str, ...]]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for names in self.shards.values() for name in names)


def open_shard(path: Path) -> Any:
    """An open safetensors file (a context manager), or a ``WeightsError`` that names the file."""
    if not path.is_file():
        raise WeightsError(f"{path} is missing")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors (truncated download?): {error}") from error


def find_checkpoint(folder: Path) -> Checkpoint:
    """The folder's weights: those its index names, else one file, else every safetensors file there."""
    index = folder / INDEX
    if index.is_file():
        paths = sorted({folder / file for file in _weight_map(index).values()})
    elif (folder / SINGLE).is_file():
        paths = [folder / SINGLE]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"no weights in {folder}: neither {INDEX} nor {SINGLE} nor any other .safetensors file")
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise WeightsError(f"{INDEX} in {folder} names files that are not there: {listed(missing)}")
    checkpoint = Checkpoint(folder, {path: _names(path) for path in paths})
    _check_names(checkpoint, _weight_map(index) if index.is_file() else {})
    return checkpoint


def _names(path: Path) -> tuple[str, ...]:
    with open_shard(path) as shard:
        return tuple(shard.keys())


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        if not all(isinstance(file, str) and "/" not in file and "\\" not in file for file in weight_map.values()):
            raise ValueError("weight_map names files outside the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} is not a safetensors index: {error!r}") from error
    return dict(weight_map)


def _check_names(checkpoint: Checkpoint, weight_map: dict[str, str]) -> None:
    counts = Counter(name for names in checkpoint.shards.values() for name in names)
    twice = sorted(name for name, n in counts.items() if n > 1)
    absent = sorted(set(weight_map) - counts.keys())
    unlisted = sorted(counts.keys() - set(weight_map)) if weight_map else []
    problems = [
        f"{text}: {listed(names)}"
        for text, names in (
            ("in more than one file", twice),
            ("named in the index but in no file", absent),
            ("in a file but not in the index", unlisted),
        )
        if names
    ]
    if problems:
        raise WeightsError(f"weights in {checkpoint.folder} are inconsistent; " + "; ".join(problems))


def listed(names: list[str], most: int = 12) -> str:
    """The names, or the first of them and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
