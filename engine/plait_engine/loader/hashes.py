"""Checking files against the SHA256SUMS file that a model folder may carry."""

import hashlib
from pathlib import Path

from plait_engine.loader.checkpoint import WeightsError, listed

SUMS = "SHA256SUMS"


def verify_hashes(folder: Path) -> int:
    """Check every file that SHA256SUMS lists; how many there were. Reads all of them once."""
    path = folder / SUMS
    try:
        lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip()]
        sums = {name.lstrip("*"): digest.lower() for digest, name in lines}
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read as lines of digest and file name: {error}") from error
    missing = sorted(name for name in sums if not (folder / name).is_file())
    wrong = sorted(name for name in sums if name not in missing and _digest(folder / name) != sums[name])
    if missing or wrong:
        texts = [f"{text}: {listed(names)}" for text, names in (("missing", missing), ("altered", wrong)) if names]
        raise WeightsError(f"files in {folder} do not match {SUMS}; " + "; ".join(texts))
    return len(sums)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
