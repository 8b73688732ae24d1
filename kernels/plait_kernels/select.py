"""Which implementation of each op runs here, and why."""

from dataclasses import dataclass, field

import torch

from plait_kernels.causal_conv import CausalConv
from plait_kernels.causal_conv.reference import causal_conv
from plait_kernels.gated_activation import GatedActivation
from plait_kernels.gated_activation.reference import gated_activation
from plait_kernels.gated_delta_rule import GatedDeltaRule
from plait_kernels.gated_delta_rule.reference import gated_delta_rule
from plait_kernels.linear import Linear
from plait_kernels.linear.reference import linear
from plait_kernels.moe import Moe
from plait_kernels.moe.reference import moe
from plait_kernels.norm import AddRmsNorm, GatedRmsNorm, RmsNorm
from plait_kernels.norm.reference import add_rms_norm, gated_rms_norm, rms_norm
from plait_kernels.paged_attention import PagedAttention
from plait_kernels.paged_attention.reference import paged_attention
from plait_kernels.rotary import Rotary
from plait_kernels.rotary.reference import rotary
from plait_kernels.sampling import ComputeLogprobs, Penalise, Sample
from plait_kernels.sampling.reference import logprobs, penalise, sample
from plait_kernels.ssd import Ssd
from plait_kernels.ssd.reference import ssd


@dataclass(frozen=True)
class Choice:
    """Which implementation an op has, and why that one."""

    implementation: str
    reason: str


@dataclass
class Kernels:
    """One callable per op; see each op's folder for what it promises. Built by ``select``.

    Models keep this object and look an op up at every call (``kernels.ssd(...)``), so that ``upgrade`` takes effect.
    """

    linear: Linear = linear
    rms_norm: RmsNorm = rms_norm
    add_rms_norm: AddRmsNorm = add_rms_norm
    gated_rms_norm: GatedRmsNorm = gated_rms_norm
    gated_activation: GatedActivation = gated_activation
    rotary: Rotary = rotary
    paged_attention: PagedAttention = paged_attention
    causal_conv: CausalConv = causal_conv
    ssd: Ssd = ssd
    gated_delta_rule: GatedDeltaRule = gated_delta_rule
    moe: Moe = moe
    sample: Sample = sample
    penalise: Penalise = penalise
    logprobs: ComputeLogprobs = logprobs
    choices: dict[str, Choice] = field(default_factory=dict)

    def upgrade(self) -> bool:
        """Take over faster kernels that became ready since the last call; True if anything changed.

        Call it between steps, never inside one: two implementations of an op agree to rounding, not to the bit.
        Costs next to nothing while there is nothing to take over.
        """
        return False


OPS = tuple(name for name in Kernels.__dataclass_fields__ if name != "choices")


def select(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Kernels for activations of ``dtype`` on ``device``, ready at once."""
    reason = f"plain PyTorch, runs on every device; nothing faster for {dtype} on {device.type}"
    return Kernels(choices={name: Choice("reference", reason) for name in OPS})
