"""Launch configurations: what was measured best for a kernel, a shape and a GPU, with a safe default for all others.

Tables are JSON, one per GPU: ``{"kernels": {kernel: {key: {name: value}}}}``. Those of GPUs that we measured lie in
this folder; a table in the user's cache folder goes before them. Nothing is ever tuned while a request waits.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

Config = Mapping[str, int]
"""Values by name: block sizes, splits, and Triton's ``num_warps`` and ``num_stages``."""

TABLES = Path(__file__).parent
CACHE = Path.home() / ".cache" / "plait" / "tuning"

_registered: "dict[str, Tunable]" = {}


@dataclass
class Tunable:
    """A kernel's configurations. ``default`` works on any GPU; ``options`` are what a sweep tries."""

    name: str
    default: Config
    options: tuple[Config, ...] = ()
    forced: Config | None = None
    last_key: tuple[int, ...] = ()
    """What was asked for last: a sweep stores its finding under it."""
    _known: dict[tuple[int, ...], Config] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _registered[self.name] = self

    def config(self, device: torch.device, *key: int) -> Config:
        """For a shape ``key`` (see ``bucket`` for sizes that vary)."""
        self.last_key = key
        if self.forced is not None:
            return self.forced
        found = self._known.get(key)
        if found is None:
            stored = table_of(device_slug(device)).get(self.name, {}).get(key_name(key), {})
            found = self._known[key] = {**self.default, **stored}
        return found

    @contextmanager
    def use(self, config: Config) -> Iterator[None]:
        """Run with ``config`` whatever the table says: for sweeps and for tests."""
        before, self.forced = self.forced, {**self.default, **config}
        try:
            yield
        finally:
            self.forced = before


def tunables() -> Mapping[str, Tunable]:
    """All that were registered by the modules imported so far."""
    return _registered


def bucket(n: int) -> int:
    """Sizes between two powers of two share a configuration: the upper one."""
    return 1 << max(0, n - 1).bit_length()


def key_name(key: tuple[int, ...]) -> str:
    return "x".join(map(str, key))


_slugs: dict[torch.device, str] = {torch.device("cpu"): "cpu"}


def device_slug(device: torch.device) -> str:
    """What a GPU's table is called: h200 for NVIDIA H200; cpu under the interpreter."""
    if device not in _slugs:
        name = torch.cuda.get_device_name(device)
        _slugs[device] = name.lower().removeprefix("nvidia ").replace(" ", "-")
    return _slugs[device]


@cache
def table_of(slug: str) -> dict[str, dict[str, dict[str, int]]]:
    """Kernel to key to configuration: the tables shipped with Plait, overridden by those of the cache folder."""
    merged: dict[str, dict[str, dict[str, int]]] = {}
    for folder in (TABLES, CACHE):
        path = folder / f"{slug}.json"
        if path.is_file():
            for kernel, configs in json.loads(path.read_text())["kernels"].items():
                merged.setdefault(kernel, {}).update(configs)
    return merged


def store(path: Path, device: str, found: Mapping[str, Mapping[str, Config]], note: str) -> None:
    """Write a table, keeping what ``path`` holds for other kernels and shapes."""
    kernels = json.loads(path.read_text())["kernels"] if path.is_file() else {}
    for kernel, configs in found.items():
        kernels.setdefault(kernel, {}).update({key: dict(config) for key, config in configs.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"device": device, "note": note, "kernels": kernels}, indent=1, sort_keys=True) + "\n")
