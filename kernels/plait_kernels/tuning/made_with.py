"""What findings depend on besides the GPU: the kernels, the compiler, and the libraries that they are compared with."""

import hashlib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

KERNELS = Path(__file__).parents[1]


@cache
def made_with() -> str:
    """Another name for other kernels, or for another Triton or PyTorch."""
    return name_of(KERNELS, ("triton", "torch"))


def name_of(folder: Path, packages: tuple[str, ...]) -> str:
    """Of all Python files under ``folder``, and of the packages' versions."""
    digest = hashlib.sha256()
    for package in packages:
        version = import_module(package).__version__ if find_spec(package) is not None else "none"
        digest.update(f"{package} {version}\n".encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
