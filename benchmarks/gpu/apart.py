"""Parts of a benchmark in processes of their own: one that hangs or breaks the device takes nothing but itself."""

import subprocess
import sys


def in_process(module: str, *words: str, seconds: float) -> tuple[str, str]:
    """What ``module`` printed, run with ``words``; and what went wrong, or nothing."""
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
            return out, "" if process.returncode == 0 else errors.strip()[-300:]
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            return out, f"no end after {seconds} s"
