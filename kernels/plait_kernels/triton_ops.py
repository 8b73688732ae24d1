"""The ops' Triton implementations by name, for ``select`` and for tests. Importing this needs ``triton``."""

from collections.abc import Callable
from typing import Any

from plait_kernels.causal_conv.triton import causal_conv
from plait_kernels.gated_activation.triton import gated_activation
from plait_kernels.gated_delta_rule.triton import gated_delta_rule
from plait_kernels.norm.triton import add_rms_norm, gated_rms_norm, rms_norm
from plait_kernels.paged_attention.triton import paged_attention
from plait_kernels.rotary.triton import rotary
from plait_kernels.ssd.triton import ssd

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "gated_rms_norm": gated_rms_norm,
    "gated_activation": gated_activation,
    "rotary": rotary,
    "paged_attention": paged_attention,
    "causal_conv": causal_conv,
    "ssd": ssd,
    "gated_delta_rule": gated_delta_rule,
}
