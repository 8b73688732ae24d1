"""From the sources beside this file to a shared library in the user's cache, without anyone waiting for it."""

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
COMPILERS = ("g++", "clang++", "c++")


class BuildError(Exception):
    """No library can be had; the message says why."""


@dataclass(frozen=True)
class Target:
    """What would be built, with what, and where it lies once it is."""

    compiler: str
    library: Path


@cache
def target() -> Target:
    """Raises ``BuildError`` where there is no compiler."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler found ({', '.join(COMPILERS)})")
    key = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        key.update(source.name.encode() + source.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    key.update(version + " ".join(FLAGS).encode() + _cpu().encode())
    return Target(compiler, _cache_folder() / f"plait-{key.hexdigest()[:24]}.so")


def _cpu() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "plait" / "kernels"


class Build:
    """A compiler at work at the lowest priority. The library appears under its name only when it is whole."""

    # The shell puts the result in place by itself, so a build also serves the next start when this process has ended.
    _SCRIPT = 'out=$1; shift; "$@" -o "$out.$$" && mv -f "$out.$$" "$out" || { rm -f "$out.$$"; exit 1; }'

    def __init__(self, target: Target) -> None:
        self.target = target
        try:
            target.library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the compiler)
            nice = ("nice", "-n", "19") if shutil.which("nice") else ()
            sources = sorted(str(path) for path in SOURCES.glob("*.cpp"))
            command = ("sh", "-c", self._SCRIPT, "sh", str(target.library), *nice, target.compiler, *FLAGS, *sources)
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
            )
        except OSError as error:
            raise BuildError(f"cannot build: {error}") from error
        atexit.register(self.stop)

    def done(self) -> bool:
        """Whether the library is there now; raises ``BuildError`` if it never will be. Costs a microsecond."""
        code = self._process.poll()
        if code is None:
            return False
        if code != 0 or not self.target.library.exists():
            raise BuildError(f"{self.target.compiler} failed: {self._first_error()}")
        return True

    def wait(self) -> None:
        """Until it is done either way."""
        self._process.wait()

    def stop(self) -> None:
        """End the compiler, if it still runs: nothing is left behind by a process that ends."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 15)
            self._process.wait()

    def _first_error(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return next((line for line in lines if "error" in line), f"exit code {self._process.returncode}")
