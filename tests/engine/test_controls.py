"""The list of controls is whole and not out of date; replaying it takes minutes and is for ``make test-full``."""

import ast

import pytest

from tests.engine.controls import CONTROLS, PAGE, ROOT, replay, table


def test_the_page_is_the_list() -> None:
    assert PAGE.read_text() == table()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.what)
def test_each_control_names_code_and_tests_that_exist(control) -> None:  # type: ignore[no-untyped-def]
    code = (ROOT / control.file).read_text()
    assert code.count(control.old) == 1
    ast.parse(code.replace(control.old, control.new))
    file, words = control.test.split("::")
    tests = (ROOT / "tests" / "engine" / file).read_text()
    assert f"{words.split()[0]}" in tests


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_test_fails_under_its_sabotage() -> None:
    assert [control.what for control, failed in replay() if not failed] == []
