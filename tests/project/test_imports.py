"""Imports go one way, plait_server to plait_engine to plait_kernels; no package knows more than it may."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.repository import PACKAGES, ROOT

FORBIDDEN = {
    "plait_kernels": {"plait_engine", "plait_server", "fastapi", "starlette", "uvicorn", "pydantic", "zmq", "msgspec"},
    "plait_engine": {"plait_server", "fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"},
    "plait_server": {"plait_kernels", "torch", "safetensors", "triton"},
}
NOWHERE = {"tests", "benchmarks", "demo"}


def imported_modules(source: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(source.read_text(), str(source))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_lies_below_it(package: str) -> None:
    sources = sorted(PACKAGES[package].rglob("*.py"))
    assert sources
    wrong = [
        f"{source.relative_to(ROOT)}:{line} imports {module}"
        for source in sources
        for module, line in imported_modules(source)
        if module.split(".")[0] in FORBIDDEN[package] | NOWHERE
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").exists()


def test_the_walk_sees_every_form_of_import(tmp_path: Path) -> None:
    source = tmp_path / "example.py"
    source.write_text("import a.b, c\nfrom d.e import f\ndef g():\n    import h\n    from . import i\n")
    assert [name for name, _ in imported_modules(source)] == ["a.b", "c", "d.e", "h"]
