"""This repository as text: where things are, and what the pages and the command line say."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PACKAGES = {name: ROOT / folder / name for folder, name in
            (("server", "plait_server"), ("engine", "plait_engine"), ("kernels", "plait_kernels"))}  # fmt: skip
PAGES = sorted((ROOT / "docs").glob("*.md"))
DASHBOARD = ROOT / "grafana/dashboards/plait.json"
RULES = ROOT / "deploy/prometheus/rules/plait.yaml"
_UNTRACKED = {".git", ".venv", "dist", "build"}


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files that git knows; in a copy without git, all that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if not _UNTRACKED & set(p.relative_to(ROOT).parts)]
        paths = [p for p in paths if "cache" not in str(p.relative_to(ROOT).parent)]
    return tuple(p for p in paths if p.is_file())


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def version() -> str:
    return str(pyproject()["project"]["version"])


def load_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def rules() -> list[Any]:
    return [rule for group in load_yaml(RULES)["groups"] for rule in group["rules"]]


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> Iterator[list[str]]:
    """Words of each command in a page's bash blocks; one that goes over several lines comes as one."""
    for block in code_blocks(page, "bash"):
        command = ""
        for line in block.splitlines():
            command += line + "\n"
            try:
                words = shlex.split(command, comments=True)
            except ValueError:  # Inside quotes: the command goes on in the next line.
                continue
            if words and not line.endswith("\\"):
                yield words
            if not line.endswith("\\"):
                command = ""


def plait_commands() -> dict[str, Any]:
    """Sub-commands of ``plait`` as click commands, by name."""
    if importlib.util.find_spec("plait_server") is None or importlib.util.find_spec("plait_server.cli") is None:
        pytest.skip("plait_server.cli does not exist yet")
    from typer.main import get_command

    from plait_server.cli.commands import app

    group = get_command(app)
    return dict(group.commands)  # type: ignore[attr-defined]


def flags_of(command: Any) -> set[str]:
    """Those of a group are its commands'."""
    below = set().union(*map(flags_of, getattr(command, "commands", {}).values()))
    return below | {
        name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }  # fmt: skip


def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not on PATH (Debian: package prometheus)")
    return path
