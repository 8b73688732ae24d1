"""``gated_activation`` in plain PyTorch."""

from torch import Tensor
from torch.nn import functional as F

from plait_kernels.gated_activation import Kind


def gated_activation(gate: Tensor, up: Tensor, kind: Kind) -> Tensor:
    opening = F.silu(gate.float()) if kind == "silu" else F.gelu(gate.float(), approximate="tanh")
    return (opening * up.float()).to(gate.dtype)
