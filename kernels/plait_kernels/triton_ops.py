"""The ops' Triton implementations by name, for ``select`` and for tests. Importing this needs ``triton``."""

from collections.abc import Callable
from typing import Any

from plait_kernels.causal_conv.triton import causal_conv
from plait_kernels.checksum_units.triton import checksum_units
from plait_kernels.copy_units.triton import copy_units
from plait_kernels.gated_activation.triton import gated_activation
from plait_kernels.gated_delta_rule.triton import gated_delta_rule
from plait_kernels.gdn_step.triton import gdn_step
from plait_kernels.linear.triton import linear
from plait_kernels.mamba2_step.triton import mamba2_step
from plait_kernels.moe.triton import moe
from plait_kernels.norm.triton import add_rms_norm, gated_rms_norm, rms_norm
from plait_kernels.paged_attention.triton import paged_attention
from plait_kernels.qk_rotary.triton import qk_rotary
from plait_kernels.rotary.triton import rotary
from plait_kernels.sampling.triton import logprobs, penalise, sample
from plait_kernels.ssd.triton import ssd

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "gated_rms_norm": gated_rms_norm,
    "gated_activation": gated_activation,
    "rotary": rotary,
    "paged_attention": paged_attention,
    "causal_conv": causal_conv,
    "ssd": ssd,
    "gated_delta_rule": gated_delta_rule,
    "moe": moe,
    "sample": sample,
    "penalise": penalise,
    "logprobs": logprobs,
    "copy_units": copy_units,
    "checksum_units": checksum_units,
}
"""The ops of ``Kernels``."""

JOINED: dict[str, Callable[..., Any]] = {
    "qk_rotary": qk_rotary,
    "gdn_step": gdn_step,
    "mamba2_step": mamba2_step,
}
"""Ops that join several into one launch."""
