"""From a name to a folder: paths, the local Hugging Face cache, and clear words when neither has it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from plait_engine.loader.find import ModelNotFoundError, find_model


def refused(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "http://hub"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache, and no way to the network."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(folder))
    return folder


def put_in_cache(cache: Path, folder: Path) -> Path:
    repo = cache / "models--acme--tiny"
    snapshot = repo / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    return snapshot


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[str]]:
    """Replace what happens when something would be downloaded; the names that were asked for."""
    real = huggingface_hub.snapshot_download

    def install(outcome: Any) -> list[str]:
        asked: list[str] = []

        def fake(name: str, **options: Any) -> Any:
            if options.get("local_files_only"):
                return real(name, **options)
            asked.append(name)
            if isinstance(outcome, Exception):
                raise outcome
            return str(outcome)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
        return asked

    return install


def test_a_folder_is_taken_as_it_is(folder: Path) -> None:
    assert find_model(str(folder)) == folder


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"not a model folder: it has no config\.json"):
        find_model(str(tmp_path))


def test_a_file_is_refused(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"is a file; name the folder that holds config\.json"):
        find_model(str(folder / "config.json"))


def test_an_unreadable_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.listdir", denied)
    with pytest.raises(ModelNotFoundError, match="cannot be read: Permission denied"):
        find_model(str(folder))


@pytest.mark.parametrize(
    "name", ["nowhere", "./nowhere/at-all", "/nowhere/at/all", "a/b/c", "../x", "org/", "a b/c", ""]
)
def test_a_name_that_is_no_folder_and_no_hub_name_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no such folder|not a model folder"):
        find_model(name)


def test_a_complete_snapshot_in_the_cache_is_taken_without_a_download(
    cache: Path, folder: Path, downloads: Callable[[Any], list[str]]
) -> None:
    asked = downloads(RuntimeError("no network"))
    snapshot = put_in_cache(cache, folder)
    assert find_model("acme/tiny") == snapshot
    assert asked == []


def test_an_incomplete_snapshot_is_downloaded(cache: Path, folder: Path, downloads: Callable[[Any], list[str]]) -> None:
    snapshot = put_in_cache(cache, folder)
    (snapshot / "model.safetensors").unlink()
    asked = downloads(folder)
    assert find_model("acme/tiny") == folder
    assert asked == ["acme/tiny"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE forbids downloading"),
        (errors.LocalEntryNotFoundError("cannot reach"), "check the network"),
        (httpx.ConnectError("no route"), "ConnectError: no route.*check the network"),
        (OSError(28, "No space left on device"), "No space left"),
        (errors.RepositoryNotFoundError("404", response=refused(404)), "no such model on Hugging Face"),
        (errors.GatedRepoError("403", response=refused(403)), "licence to be accepted"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_model_that_cannot_be_fetched_says_why(
    downloads: Callable[[Any], list[str]], error: Exception, message: str
) -> None:
    downloads(error)
    with pytest.raises(ModelNotFoundError, match=rf"'acme/tiny'.*{message}"):
        find_model("acme/tiny")
