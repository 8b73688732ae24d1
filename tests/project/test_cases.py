"""The page of cases names tests that exist, and every test that is named after a case is on it."""

import ast
import re

from tests.project.repository import ROOT

PAGE = (ROOT / "docs/cases.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_tests_on_the_page_exist() -> None:
    assert len(NAMED) > 25
    for path, name in NAMED:
        assert name in functions(path), f"{path} has no {name}"


def test_tests_of_reuse_named_after_a_case_are_on_the_page() -> None:
    listed = {name for _, name in NAMED}
    for path in sorted((ROOT / "tests/engine/reuse").glob("test_*.py")):
        for name in functions(f"engine/reuse/{path.name}"):
            assert name in listed or not re.match(r"test_case_\d", name), f"{path.name}::{name} is not on docs/cases.md"
