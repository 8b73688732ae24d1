"""Flags over file over defaults, with the option named when something is wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from plait_engine.config import EngineConfig, LoadFormat
from plait_engine.demo_model import DEMO_FOLDER
from plait_server.cli.names import served_names
from plait_server.cli.options import OptionError, read_options
from plait_server.config import ServerConfig

ROOT = Path(__file__).parents[3]


def write(folder: Path, content: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(content)
    return path


def test_nothing_given_is_the_demo_with_defaults() -> None:
    options = read_options(None, {"model": None, "port": None})
    assert options.engine == EngineConfig(model=str(DEMO_FOLDER))
    assert options.server == ServerConfig()


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "model: a\nport: 1\nmemory: 4GiB\nmax_seqs: 3\nserved_model_name: [x, y]\ngrace_seconds: 5")
    options = read_options(file, {"port": 2, "model": None, "max_seqs": 4})
    assert (options.engine.model, options.engine.memory_bytes, options.engine.max_seqs) == ("a", 4 << 30, 4)
    assert (options.server.port, options.server.served_names, options.server.grace_seconds) == (2, ("x", "y"), 5.0)


def test_the_example_file_holds_only_known_options_and_the_defaults() -> None:
    path = ROOT / "deploy/config.example.yaml"
    options = read_options(path, {})
    assert options.server == ServerConfig()
    assert options.engine == EngineConfig(model=str(DEMO_FOLDER))


def test_options_that_the_example_only_mentions_are_known_too(tmp_path: Path) -> None:
    lines = (ROOT / "deploy/config.example.yaml").read_text().splitlines()
    mentioned = [line.removeprefix("# ") for line in lines if line.startswith("# ") and ": " in line]
    found: dict[str, Any] = {}
    for line in mentioned:
        key, _, value = line.partition(": ")
        if key.isidentifier() and key.islower():
            found[key] = yaml.safe_load(value)
    assert len(found) >= 5
    read_options(write(tmp_path, yaml.safe_dump(found)), {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no_such_option: 1", "no_such_option"),
        ("port: many", "port must be of type int"),
        ("port: true", "port must be of type int"),
        ("port: 70000", "port must be between"),
        ("max_seqs: 1.5", "max_seqs must be of type int"),
        ("max_seqs: 0", "max_seqs must be at least 1"),
        ("memory: lots", "lots"),
        ("dtype: int3", "dtype must be"),
        ("load_format: pickle", "load_format must be one of auto, random"),
        ("log_level: loud", "log_level must be one of"),
        ("access_log: 1", "access_log must be of type bool"),
        ("grace_seconds: -1", "grace_seconds"),
        ("- a list", "one `name: value` a line"),
        ("a: [", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(write(tmp_path, content), {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.yaml cannot be read"):
        read_options(tmp_path / "nowhere.yaml", {})


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read_options(write(tmp_path, "# nothing\n"), {}) == read_options(None, {})


def test_words_become_what_the_engine_knows() -> None:
    options = read_options(None, {"load_format": "random", "memory": "500MB", "grace_seconds": 3})
    assert options.engine.load_format is LoadFormat.RANDOM
    assert options.engine.memory_bytes == 500_000_000
    assert options.server.grace_seconds == 3.0


def test_a_model_has_a_name_when_nobody_gives_one(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert served_names(str(folder), folder) == ("my-model",)
    assert served_names("org/name", tmp_path / "snapshots/0123") == ("org/name",)
    assert served_names(str(DEMO_FOLDER), DEMO_FOLDER) == ("plait-demo",)


def test_the_configuration_can_be_printed_line_by_line() -> None:
    assert "port = 8000" in ServerConfig().lines()
