"""The ``plait`` command itself."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait_server.cli.commands import app
from plait_server.cli.local_server import LocalServerFailed, local_server
from plait_server.cli.offline import status_of

COMMANDS = ("serve", "bench", "chat", "plan", "inspect", "verify", "drill", "profile", "version")


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "plait_server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_help_lists_the_commands_without_loading_anything() -> None:
    code = (
        "import sys\nfrom plait_server.cli import main\nsys.argv = ['plait', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'fastapi', 'pydantic', 'plait_engine', 'tokenizers', 'httpx'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(command in output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "--help" in result.output


def test_the_release_is_printed() -> None:
    assert CliRunner().invoke(app, ["version"]).output.strip()
    assert CliRunner().invoke(app, ["--version"]).output == CliRunner().invoke(app, ["version"]).output


@pytest.mark.parametrize("command", ["serve", "plan", "inspect", "verify", "drill", "profile"])
def test_a_wrong_option_is_an_error_of_one_line(command: str) -> None:
    result = CliRunner().invoke(app, [command, "somewhere", "--dtype", "int3"])
    assert result.exit_code == 2
    assert "dtype must be" in result.output
    assert "Traceback" not in result.output


def test_a_model_that_is_not_there_is_an_error_that_names_it() -> None:
    result = run("serve", "/nowhere/at all")
    assert result.returncode == 1
    assert "/nowhere/at all" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_without_tokenizer_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = run("serve", str(tmp_path))
    assert result.returncode == 1
    assert "tokenizer.json is missing" in result.stderr


def test_a_server_that_cannot_start_ends_the_command_that_needed_it() -> None:
    started = time.monotonic()
    with pytest.raises(LocalServerFailed, match="status 1"), local_server("/nowhere/at all"):
        pass
    assert time.monotonic() - started < 30


def test_a_drill_s_table_loses_no_letter_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run("drill")
    assert result.returncode == 0, result.stderr
    assert "checksum" in result.stdout
    assert "…" not in result.stdout


def test_questions_that_a_model_does_not_allow_are_answered_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    def impossible() -> bool:
        raise ValueError("layer kinds conflict")

    assert [status_of(lambda: True), status_of(lambda: False), status_of(impossible)] == [0, 1, 2]
    assert "layer kinds conflict" in capsys.readouterr().err
