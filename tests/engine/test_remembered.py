"""What is the same at every start is worked out once: for this code, and for this question alone."""

from pathlib import Path

import pytest

from plait_engine import remembered as module
from plait_engine.remembered import remembered


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "plait" / "plans"


def not_again() -> int:
    raise AssertionError("it was known")


def test_an_answer_is_worked_out_once_for_each_question() -> None:
    assert remembered("a", lambda: 7) == 7
    assert remembered("a", not_again) == 7
    assert remembered("b", lambda: 8) == 8
    assert remembered("a", not_again) == 7


def test_other_code_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered("a", lambda: 7)
    monkeypatch.setattr(module, "_code", lambda: "newer")
    assert remembered("a", lambda: 9) == 9


def test_the_code_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somebody"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "PACKAGES", ("somebody",))
    before = module._code.__wrapped__()
    assert module._code.__wrapped__() == before
    (package / "more.py").write_text("x = 1")
    assert module._code.__wrapped__() != before


def test_a_broken_entry_is_replaced(cache: Path) -> None:
    remembered("a", lambda: 7)
    (entry,) = cache.iterdir()
    entry.write_text("7 and a half")
    assert remembered("a", lambda: 10) == 10
    assert remembered("a", not_again) == 10
    assert [path.name for path in cache.iterdir()] == [entry.name]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert remembered("a", lambda: 7) == 7
    assert remembered("a", lambda: 8) == 8
