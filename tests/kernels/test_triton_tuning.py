"""Stored configurations: found by GPU and shape, never mixed up, and only for kernels that exist."""

import json
from pathlib import Path

import pytest
import torch

from tests.kernels.triton_world import MARKS  # isort: skip  (before anything imports triton)
from plait_kernels import triton_ops, tuning
from plait_kernels.tuning import TABLES, Tunable, bucket, store, tunables

pytestmark = MARKS
CPU = torch.device("cpu")


def test_shipped_tables_name_kernels_and_values_that_exist() -> None:
    assert triton_ops.IMPLEMENTATIONS
    for path in TABLES.glob("*.json"):
        for kernel, configs in json.loads(path.read_text())["kernels"].items():
            known = {name for option in (tunables()[kernel].default, *tunables()[kernel].options) for name in option}
            for key, config in configs.items():
                assert config.keys() <= known, f"{path.name}: {kernel} {key}"


def test_defaults_are_complete() -> None:
    """An option may name fewer values; the default fills in the rest, but for a limit on registers."""
    for tunable in tunables().values():
        for option in tunable.options:
            assert option.keys() - tunable.default.keys() <= {"maxnreg"}, tunable.name


def test_a_table_in_the_cache_goes_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, cached = tmp_path / "shipped", tmp_path / "cached"
    store(shipped / "cpu.json", "cpu", {"x": {"1x2": {"A": 1}, "1x3": {"A": 1}}}, "")
    store(cached / "cpu.json", "cpu", {"x": {"1x2": {"A": 2}}}, "")
    monkeypatch.setattr(tuning, "TABLES", shipped)
    monkeypatch.setattr(tuning, "CACHE", cached)
    tuning.table_of.cache_clear()
    try:
        tunable = Tunable("x", {"A": 0, "B": 7})
        assert tunable.config(CPU, 1, 2) == {"A": 2, "B": 7}
        assert tunable.config(CPU, 1, 3) == {"A": 1, "B": 7}
        assert tunable.config(CPU, 9, 9) == {"A": 0, "B": 7}
        with tunable.use({"B": 8}):
            assert tunable.config(CPU, 1, 2) == {"A": 0, "B": 8}
        assert tunable.config(CPU, 1, 2) == {"A": 2, "B": 7}
    finally:
        tuning.table_of.cache_clear()
        tuning._registered.pop("x")


def test_storing_keeps_what_other_sweeps_found(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    store(path, "GPU", {"x": {"1": {"A": 1}}}, "first")
    store(path, "GPU", {"x": {"2": {"A": 2}}, "y": {"1": {"A": 3}}}, "second")
    assert json.loads(path.read_text())["kernels"] == {"x": {"1": {"A": 1}, "2": {"A": 2}}, "y": {"1": {"A": 3}}}


def test_sizes_share_the_configuration_of_the_next_power_of_two() -> None:
    assert [bucket(n) for n in (1, 2, 3, 4, 5, 33)] == [1, 2, 4, 4, 8, 64]
