"""``qk_rotary`` as the ops that it joins."""

from torch import Tensor

from plait_kernels.norm.reference import rms_norm
from plait_kernels.rotary.reference import rotary


def qk_rotary(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor | None,
    *,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    def ready(u: Tensor, weight: Tensor | None) -> Tensor:
        normed = u if weight is None else rms_norm(u, weight, eps, offset=offset)
        return normed if cos_sin is None else rotary(normed, positions, cos_sin)

    return ready(q, q_weight), ready(k, k_weight)
