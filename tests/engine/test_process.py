"""The engine's process before its loop begins."""

import subprocess
import sys

import psutil

ORPHAN = """
import os, time
from plait_engine.process import ends_with
parent = os.getpid()
if child := os.fork():
    print(child, flush=True)
    time.sleep(60)
else:
    with ends_with(parent):
        time.sleep(60)
"""


def test_a_long_start_is_over_soon_after_the_parent_is() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = psutil.Process(int(parent.stdout.readline()))
        finally:
            parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone
