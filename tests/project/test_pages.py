"""What README.md and docs/ tell people to type works, and what there is to type is documented."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.project.repository import PACKAGES, PAGES, ROOT, code_blocks, command_lines, flags_of, plait_commands

README = ROOT / "README.md"
EVERY_PAGE = [README, ROOT / "CONTRIBUTING.md", *PAGES]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_bash_blocks_are_bash(page: Path) -> None:
    for block in code_blocks(page, "bash"):
        result = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_make_targets_on_pages_exist(page: Path) -> None:
    for words in command_lines(page):
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert set(targets) <= make_targets()


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_plait_commands_on_pages_exist_with_their_flags(page: Path) -> None:
    lines = [words for words in command_lines(page) if Path(words[0]).name == "plait"]
    if not lines:
        return
    commands = plait_commands()
    for _, name, *words in lines:
        assert name in commands, name
        assert {word for word in words if word.startswith("--")} <= flags_of(commands[name]), (name, words)


def test_readme_gives_two_commands_first() -> None:
    assert code_blocks(README, "bash")[:2] == ["make serve\n", "make test\n"]


def test_help_lists_every_target() -> None:
    result = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"^make ([a-z-]+)", result.stdout, re.MULTILINE)) == make_targets()


def test_every_flag_is_documented() -> None:
    text = "\n".join(page.read_text() for page in (README, *PAGES))
    for name, command in plait_commands().items():
        assert f"plait {name}" in text, f"plait {name} is on no page"
        long_flags = {flag for flag in flags_of(command) if flag.startswith("--")} - {"--help"}
        unknown = [flag for flag in sorted(long_flags) if not re.search(rf"{flag}(?![\w-])", text)]
        assert not unknown, f"plait {name}: {unknown} are on no page"


def test_flags_in_the_table_exist() -> None:
    table = re.findall(r"^\| `(--[\w-]+)` \|", (ROOT / "docs/serving.md").read_text(), re.MULTILINE)
    assert table
    assert set(table) <= flags_of(plait_commands()["serve"])


def test_readme_curl_examples_get_answers(served: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not on PATH")
    blocks = [block for block in code_blocks(README, "bash") if "curl" in block]
    assert blocks
    for block in blocks:
        command = block.replace("http://localhost:8000", served)
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
        answer = json.loads(result.stdout)
        assert answer["choices"][0]["message"]["content"].strip(), answer


def test_readme_sdk_example_gets_answers(served: str, tmp_path: Path) -> None:
    (block,) = code_blocks(README, "python")
    script = tmp_path / "example.py"
    script.write_text(block.replace("http://localhost:8000", served))
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.split("->")[1].strip() for line in lines), result.stdout


def test_langchain_example_gets_an_answer(served: str, tmp_path: Path) -> None:
    (block,) = code_blocks(ROOT / "docs/clients.md", "python")
    script = tmp_path / "example.py"
    script.write_text(block.replace("http://localhost:8000", served))
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "Teluk"


def test_offline_example_runs(tmp_path: Path) -> None:
    if not (PACKAGES["plait_engine"] / "demo/config.json").exists():
        pytest.skip("the demo model does not exist yet")
    (block,) = code_blocks(ROOT / "docs/offline.md", "python")
    script = tmp_path / "example.py"
    script.write_text(block)
    command = [sys.executable, str(script)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2


def test_every_endpoint_is_documented(served: str) -> None:
    with urllib.request.urlopen(f"{served}/openapi.json", timeout=10) as response:
        paths = json.loads(response.read())["paths"]
    page = (ROOT / "docs/api.md").read_text()
    for path, methods in paths.items():
        for method in methods:
            shown = re.sub(r"\{.*?\}", "{id}", path)
            assert f"`{method.upper()} {shown}`" in page, f"{method.upper()} {path} is not on docs/api.md"


def test_endpoints_on_the_page_answer(served: str) -> None:
    page = (ROOT / "docs/api.md").read_text()
    for path in re.findall(r"`GET (/[\w/]+)`", page):
        with urllib.request.urlopen(served + path, timeout=10) as response:
            assert response.status == 200, path
