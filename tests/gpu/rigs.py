"""The rigs that GPU tests run on. Those of the CPU show, where there is no GPU, that the tests themselves are right."""

from dataclasses import replace

import pytest
import torch

from tests.engine.rig import Replay, Rig

GPU = torch.cuda.is_available()
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")]

PIECE_TOKENS = 60
"""Of prompts, in steps that are recorded: more than a step of the tests has."""
COMPILED = Rig("cpu", "cpu", replay=Replay.RECORDED)
TRITON = Rig("cuda", "triton", replay=Replay.RECORDED, piece_tokens=PIECE_TOKENS)


def in_bf16(rig: Rig) -> Rig:
    return replace(rig, dtype=torch.bfloat16)


def on_gpu(*rigs: Rig) -> list[object]:
    """Parameters that are skipped without a GPU."""
    return [pytest.param(rig, id=str(rig), marks=needs_gpu) for rig in rigs]


def on_cpu(*rigs: Rig) -> list[object]:
    return [pytest.param(rig, id=str(rig)) for rig in rigs]
