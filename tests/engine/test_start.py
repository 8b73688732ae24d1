"""What a start must not cost."""

import subprocess
import sys

import pytest
import torch

from plait_engine.build import make_plan
from plait_engine.config import EngineConfig
from plait_engine.demo_model import DEMO_FOLDER

SCRIPT = """
import sys
from plait_engine.llm import LLM
from plait_engine.request import SamplingParams
llm = LLM(sys.argv[1], device="cpu")
(answer,) = llm.generate([[20, 21, 22]], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
assert len(answer.token_ids) == 8
print(*[name for name in ("torch._dynamo", "sympy", "transformers") if name in sys.modules])
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton brings torch's compiler with it")
def test_a_second_start_and_its_first_answer_import_no_compiler() -> None:
    """torch imports its compiler and shape algebra from unexpected places, more than a second each time."""
    make_plan(EngineConfig(model=str(DEMO_FOLDER), device="cpu"))  # known from now on
    command = [sys.executable, "-c", SCRIPT, str(DEMO_FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
