"""``gated_activation`` in plain PyTorch."""

from torch import Tensor
from torch.nn import functional as F

from plait_kernels.gated_activation import Opening


def gated_activation(gate: Tensor, up: Tensor, kind: Opening) -> Tensor:
    return (_opening(gate.float(), kind) * up.float()).to(gate.dtype)


def _opening(gate: Tensor, kind: Opening) -> Tensor:
    match kind:
        case "silu":
            return F.silu(gate)
        case "gelu_tanh":
            return F.gelu(gate, approximate="tanh")
        case "sigmoid":
            return gate.sigmoid()
