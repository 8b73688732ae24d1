"""From what the user named to a folder: a path, or ``org/name`` in the Hugging Face cache or on the hub."""

import os
import re
from pathlib import Path

from plait_engine.loader.checkpoint import WeightsError, find_checkpoint

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "SHA256SUMS"]
"""What a model folder is made of here; other formats of the same weights are not downloaded."""


class ModelNotFoundError(ValueError):
    """There is no such model, or it cannot be read or fetched; the message says what to do."""


def find_model(name: str) -> Path:
    """The folder of a model. Downloads only what is neither a folder nor complete in the local cache."""
    folder = Path(name).expanduser()
    if folder.exists():
        return _readable(folder)
    if not HUB_NAME.fullmatch(name):
        raise ModelNotFoundError(
            f"model {name!r}: there is no such folder, and it is not a name of the form org/name on Hugging Face"
        )
    return _cached(name) or _download(name)


def _readable(folder: Path) -> Path:
    if not folder.is_dir():
        raise ModelNotFoundError(f"model {str(folder)!r} is a file; name the folder that holds config.json")
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ModelNotFoundError(f"model folder {str(folder)!r} cannot be read: {error.strerror}") from error
    if "config.json" not in names:
        raise ModelNotFoundError(f"{str(folder)!r} is not a model folder: it has no config.json")
    return folder


def _cached(name: str) -> Path | None:
    """The newest snapshot in the local cache, if all of it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=FILES, local_files_only=True))
        find_checkpoint(folder)
    except (LocalEntryNotFoundError, WeightsError):
        return None
    return folder if (folder / "config.json").is_file() else None


def _download(name: str) -> Path:
    """From the hub, with its progress bars."""
    import httpx
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"model {name!r} asks for its licence to be accepted on huggingface.co; do that, then log in with "
            "`hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"model {name!r}: no such folder here and no such model on Hugging Face (or it is private: set HF_TOKEN)"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelNotFoundError(
            f"model {name!r} is not complete in the local cache, and HF_HUB_OFFLINE forbids downloading it"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise ModelNotFoundError(
            f"model {name!r}: no such folder, not complete in the local Hugging Face cache, and downloading it "
            f"failed ({type(error).__name__}: {_first_line(error)}); check the network, or pass the path of a folder"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
