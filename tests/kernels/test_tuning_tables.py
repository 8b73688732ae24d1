"""Tables of configurations: which one counts, what they lack, and what becomes of one that is broken or out of date."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from plait_kernels import tuning
from plait_kernels.tuning import Tunable, forget, found_path, learn, read_table, store, untuned
from plait_kernels.tuning.made_with import made_with, name_of
from plait_kernels.tuning.shelf import Shelf

CPU = torch.device("cpu")


@pytest.fixture
def tunable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tunable]:
    monkeypatch.setattr(tuning, "TABLES", tmp_path / "shipped")
    monkeypatch.setattr(tuning, "CACHE", tmp_path / "cache")
    forget()
    yield Tunable("made up", {"N": 1}, ({"N": 1}, {"N": 2}))
    tuning._registered.pop("made up")
    forget()


def test_what_a_start_has_found_goes_before_what_is_shipped_and_behind_what_somebody_made(tunable: Tunable) -> None:
    store(tuning.TABLES / "cpu.json", "", {"made up": {"1": {"N": 2}, "2": {"N": 2}, "3": {"N": 2}}}, "")
    store(found_path("cpu"), "", {"made up": {"2": {"N": 3}, "3": {"N": 3}}}, "")
    store(tuning.CACHE / "cpu.json", "", {"made up": {"3": {"N": 4}}}, "")
    assert [tunable.config(CPU, key)["N"] for key in (0, 1, 2, 3)] == [1, 2, 3, 4]


def test_what_was_found_with_other_kernels_is_not_used(tunable: Tunable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "made_with", lambda: "older")
    Shelf("cpu").put(("made up", (1,)), {"N": 2})
    forget()
    assert tunable.config(CPU, 1) == {"N": 2}
    monkeypatch.undo()
    monkeypatch.setattr(tuning, "CACHE", found_path("cpu").parent)
    forget()
    assert tunable.config(CPU, 1) == {"N": 1}


def test_the_name_changes_with_the_code_and_the_versions(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = name_of(tmp_path, ("torch",))
    assert first == name_of(tmp_path, ("torch",))
    assert first != name_of(tmp_path, ("pytest",))
    assert first != name_of(tmp_path, ("torch", "no_such_package"))
    (tmp_path / "a.py").write_text("2")
    second = name_of(tmp_path, ("torch",))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, name_of(tmp_path, ("torch",))}) == 3
    assert made_with() in found_path("cpu").name


def test_a_search_is_wanted_where_no_table_has_a_key(tunable: Tunable) -> None:
    assert untuned("cpu", "made up", (1,))
    learn("cpu", "made up", (1,), {"N": 2})
    assert not untuned("cpu", "made up", (1,))
    assert untuned("cpu", "made up", (2,))
    assert tunable.config(CPU, 1) == {"N": 2}


def test_no_search_is_wanted_where_there_is_nothing_to_choose(tunable: Tunable) -> None:
    tunable.options = ({"N": 1},)
    assert not untuned("cpu", "made up", (1,))


@pytest.mark.usefixtures("tunable")
def test_a_shipped_table_names_the_kernels_that_matter() -> None:
    store(tuning.TABLES / "cpu.json", "", {"another": {"1": {"N": 2}}}, "")
    forget()
    assert not untuned("cpu", "made up", (1,))
    store(tuning.TABLES / "cpu.json", "", {"made up": {"1": {"N": 2}}}, "")
    forget()
    assert not untuned("cpu", "made up", (1,))
    assert untuned("cpu", "made up", (2,))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"kernels": 1}', '{"kernels": {"x": {"1": {"N": "a"}}}}', "\xff"]
)
def test_a_broken_table_counts_as_empty_and_is_told_of(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path := tmp_path / "broken.json").write_bytes(text.encode("latin-1"))
    assert read_table(path) == {}
    assert str(path) in caplog.text
    store(path, "gpu", {"x": {"1": {"N": 1}}}, "")
    assert read_table(path) == {"x": {"1": {"N": 1}}}


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(path := tmp_path / "gpu.json", "gpu", {"x": {"1": {"N": 1}}}, "")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        store(path, "gpu", {"x": {"1": {"N": 2}}}, "")
    assert json.loads(path.read_text())["kernels"] == {"x": {"1": {"N": 1}}}


def test_a_folder_that_cannot_be_written_is_told_of_once(tunable: Tunable, caplog: pytest.LogCaptureFixture) -> None:
    tuning.CACHE.write_text("no folder")
    shelf = Shelf("cpu")
    for key in (1, 2):
        shelf.put(("made up", (key,)), {"N": 2})
        assert tunable.config(CPU, key) == {"N": 2}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(tuning.CACHE) in caplog.text
