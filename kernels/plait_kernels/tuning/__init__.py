"""Launch configurations: what was measured best for a kernel, a shape and a GPU, with a safe default for all others.

Tables are JSON, one per GPU: ``{"kernels": {kernel: {key: {name: value}}}}``. Those of GPUs that we measured lie in
this folder. Before them go those of the user's cache folder: what starts have found there (``found_path``), and
before all one that somebody has made. Nothing is ever tuned while a request waits.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from plait_kernels.tuning.made_with import made_with

log = logging.getLogger("plait.tuning")
Config = Mapping[str, int]
"""Values by name: block sizes, splits, and Triton's ``num_warps`` and ``num_stages``."""
Key = tuple[int, ...]
"""A shape, as a kernel's ``config`` is asked for it."""
Ask = tuple[str, Key]
"""A kernel's name, and a shape."""
Table = dict[str, dict[str, dict[str, int]]]
"""Kernel to key to configuration."""

TABLES = Path(__file__).parent
CACHE = Path.home() / ".cache" / "plait" / "tuning"

_registered: "dict[str, Tunable]" = {}
_asked: list[dict[Ask, None]] = []


@dataclass
class Tunable:
    """A kernel's configurations. ``default`` works on any GPU; ``options`` are what a sweep tries."""

    name: str
    default: Config
    options: tuple[Config, ...] = ()
    forced: Config | None = None
    last_key: Key = ()
    """What was asked for last: a sweep stores its finding under it."""
    _known: dict[Key, Config] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _registered[self.name] = self

    def config(self, device: torch.device, *key: int) -> Config:
        """For a shape ``key`` (see ``bucket`` for sizes that vary)."""
        self.last_key = key
        for seen in _asked:
            seen[self.name, key] = None
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


@contextmanager
def asking() -> Iterator[dict[Ask, None]]:
    """What is asked for inside, in the order in which it is first asked for."""
    seen: dict[Ask, None] = {}
    _asked.append(seen)
    try:
        yield seen
    finally:
        _asked[:] = [other for other in _asked if other is not seen]


def bucket(n: int) -> int:
    """Sizes between two powers of two share a configuration: the upper one."""
    return 1 << max(0, n - 1).bit_length()


def key_name(key: Key) -> str:
    return "x".join(map(str, key))


_slugs: dict[torch.device, str] = {torch.device("cpu"): "cpu"}


def device_slug(device: torch.device) -> str:
    """What a GPU's table is called: h200 for NVIDIA H200; cpu under the interpreter."""
    if device not in _slugs:
        name = torch.cuda.get_device_name(device)
        _slugs[device] = name.lower().removeprefix("nvidia ").replace(" ", "-")
    return _slugs[device]


@cache
def table_of(slug: str) -> Table:
    """Tables shipped with Plait, overridden by what starts have found here, and that by a table that somebody made."""
    merged: Table = {}
    for path in (TABLES / f"{slug}.json", found_path(slug), CACHE / f"{slug}.json"):
        for kernel, configs in read_table(path).items():
            merged.setdefault(kernel, {}).update(configs)
    return merged


def found_path(slug: str) -> Path:
    """Where a start keeps what it has found. What was found with other kernels, or another compiler, is elsewhere."""
    return CACHE / f"{slug}.{made_with()}.json"


def untuned(slug: str, kernel: str, key: Key) -> bool:
    """Whether a search may help: there is something to choose from, and no table has it.

    A table that is shipped names the kernels whose configurations matter on its GPU: others keep their defaults.
    """
    shipped = read_table(TABLES / f"{slug}.json")
    if len(_registered[kernel].options) < 2 or (shipped and kernel not in shipped):
        return False
    return key_name(key) not in table_of(slug).get(kernel, {})


def learn(slug: str, kernel: str, key: Key, config: Config) -> None:
    """From now on ``kernel`` has ``config`` for ``key``, in this process."""
    table_of(slug).setdefault(kernel, {})[key_name(key)] = dict(config)
    _registered[kernel]._known.pop(key, None)


def forget() -> None:
    """Tables are read anew when they are asked for next."""
    table_of.cache_clear()
    for tunable in _registered.values():
        tunable._known.clear()


def read_table(path: Path) -> Table:
    """What the file holds: nothing, and a warning, where that is no table; nothing where there is no file."""
    if not path.is_file():
        return {}
    try:
        kernels = json.loads(path.read_text())["kernels"]
        return {
            str(kernel): {key: {name: int(value) for name, value in config.items()} for key, config in configs.items()}
            for kernel, configs in kernels.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("%s holds no configurations, and counts as empty: %s: %s", path, type(error).__name__, error)
        return {}


def store(path: Path, device: str, found: Mapping[str, Mapping[str, Config]], note: str) -> None:
    """Write a table, whole or not at all, keeping what ``path`` holds for other kernels and shapes."""
    kernels = read_table(path)
    for kernel, configs in found.items():
        kernels.setdefault(kernel, {}).update({key: dict(config) for key, config in configs.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(
        json.dumps({"device": device, "note": note, "kernels": kernels}, indent=1, sort_keys=True) + "\n"
    )
    partial.replace(path)
