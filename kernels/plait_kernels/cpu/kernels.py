"""The compiled ops by name."""

from typing import Any

from plait_kernels.causal_conv.cpu import cpu_causal_conv
from plait_kernels.cpu.library import Library
from plait_kernels.gated_activation.cpu import cpu_gated_activation
from plait_kernels.gated_delta_rule.cpu import cpu_gated_delta_rule
from plait_kernels.linear.cpu import cpu_linear
from plait_kernels.moe.cpu import cpu_moe
from plait_kernels.norm.cpu import cpu_add_rms_norm, cpu_gated_rms_norm, cpu_rms_norm
from plait_kernels.paged_attention.cpu import cpu_paged_attention
from plait_kernels.rotary.cpu import cpu_rotary
from plait_kernels.sampling.cpu import cpu_logprobs, cpu_sample
from plait_kernels.ssd.cpu import cpu_ssd


def compiled_ops(library: Library) -> dict[str, Any]:
    linear, gated_activation = cpu_linear(library), cpu_gated_activation(library)
    return {
        "linear": linear,
        "rms_norm": cpu_rms_norm(library),
        "add_rms_norm": cpu_add_rms_norm(library),
        "gated_rms_norm": cpu_gated_rms_norm(library),
        "gated_activation": gated_activation,
        "rotary": cpu_rotary(library),
        "paged_attention": cpu_paged_attention(library),
        "causal_conv": cpu_causal_conv(library),
        "ssd": cpu_ssd(library),
        "gated_delta_rule": cpu_gated_delta_rule(library),
        "moe": cpu_moe(linear, gated_activation),
        "sample": cpu_sample(library),
        "logprobs": cpu_logprobs(library),
    }
