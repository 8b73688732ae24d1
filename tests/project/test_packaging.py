"""What pip installs: dependencies are pinned, the wheel holds what it must and nothing else."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.project.repository import PACKAGES, ROOT, pyproject, tracked_files, version

BUILT_ON_THE_GPU_MACHINE = {"cuda"}
BROUGHT_BY_CUDA_TORCH = re.compile(r"nvidia-|cuda-|triton$")


def pins() -> dict[str, Version]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "each line is name==version"
    return {canonicalize_name(name): Version(number) for name, number in (line.split("==") for line in lines)}


def direct_requirements() -> list[Requirement]:
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    listed = [line for extra, lines in extras.items() if extra not in BUILT_ON_THE_GPU_MACHINE for line in lines]
    return [Requirement(line) for line in project["dependencies"] + listed]


def needed(requirements: list[Requirement]) -> tuple[set[str], set[str]]:
    """Names of everything that the requirements bring in, as installed here, and those that are not installed."""
    names: set[str] = set()
    missing: set[str] = set()
    waiting = [(requirement, "") for requirement in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({**default_environment(), "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        names.add(name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            try:
                waiting += [(Requirement(line), wanted) for line in requires(name) or []]
            except PackageNotFoundError:
                missing.add(name)
    return names, missing


def test_every_direct_dependency_is_pinned_inside_its_range() -> None:
    pinned = pins()
    for requirement in direct_requirements():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} has no line in constraints.txt"
        assert pinned[name] in requirement.specifier, f"{name}: {pinned[name]} is not in {requirement.specifier}"


def test_everything_that_dependencies_bring_in_is_pinned_and_nothing_else() -> None:
    names, missing = needed(direct_requirements())
    unpinned = {name for name in names - pins().keys() if not BROUGHT_BY_CUDA_TORCH.match(name)}
    assert not unpinned, f"not in constraints.txt: {sorted(unpinned)}"
    if missing:
        pytest.skip(f"not installed here, so what they bring in is not known: {sorted(missing)}")
    assert not pins().keys() - names, f"nothing needs these lines of constraints.txt: {sorted(pins().keys() - names)}"


def test_torch_is_pinned_exactly() -> None:
    assert str(pins()["torch"]) == "2.13.0"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = folder.glob("*.whl")
    return zipfile.Path(path)


def test_wheel_holds_every_file_of_the_three_packages(wheel: zipfile.Path) -> None:
    inside = set(wheel.root.namelist())
    for name, folder in PACKAGES.items():
        files = {f"{name}/{path.relative_to(folder)}" for path in tracked_files() if path.is_relative_to(folder)}
        assert f"{name}/py.typed" in files
        assert files <= inside, f"missing in the wheel: {sorted(files - inside)}"


def test_wheel_holds_nothing_else(wheel: zipfile.Path) -> None:
    tops = {name.split("/")[0] for name in wheel.root.namelist()}
    assert tops == {*PACKAGES, f"plait-{version()}.dist-info"}
    assert not [name for name in wheel.root.namelist() if "__pycache__" in name or name.endswith((".pyc", ".so"))]


def test_wheel_brings_the_command_and_the_licence(wheel: zipfile.Path) -> None:
    info = wheel / f"plait-{version()}.dist-info"
    assert "plait = plait_server.cli:main" in (info / "entry_points.txt").read_text()
    assert "Apache License" in (info / "licenses/LICENSE").read_text()


def test_demo_model_is_complete_and_its_files_are_named_by_format() -> None:
    folder = PACKAGES["plait_engine"] / "demo"
    if not (folder / "config.json").exists():
        pytest.skip("the demo model does not exist yet")
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "README.md"} <= names
    assert any(name.endswith(".safetensors") for name in names)


def test_ci_script_is_executable_and_stops_at_the_first_error() -> None:
    script: Path = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()
    assert "make test" in script.read_text()
