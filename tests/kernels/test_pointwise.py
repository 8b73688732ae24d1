"""Norms, gates, rotary, linear and experts against fp64."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from plait_kernels.gated_activation import Kind, Opening
from plait_kernels.select import Kernels
from tests.kernels.scans import normal, seeded

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    assert isinstance(request.param, torch.dtype)
    return request.param


def close(seen: Tensor, truth: Tensor, dtype: torch.dtype) -> None:
    assert seen.dtype == dtype
    assert seen.shape == truth.shape
    scale = max(1.0, float(truth.abs().max()))
    assert float((seen.double() - truth).abs().max()) <= TOLERANCE[dtype] * scale


def true_norm(x: Tensor, weight: Tensor | None, offset: float = 0.0) -> Tensor:
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return normed if weight is None else normed * (weight.double() + offset)


@pytest.mark.parametrize("width", [1, 7, 64, 320])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_scales_to_unit_mean_square(kernels: Kernels, dtype: torch.dtype, width: int, offset: float) -> None:
    x, weight = normal(seeded(0), 5, width).to(dtype), normal(seeded(1), width).to(dtype)
    close(kernels.rms_norm(x, weight, 1e-6, offset=offset), true_norm(x, weight, offset), dtype)
    close(kernels.rms_norm(x, None, 1e-6), true_norm(x, None), dtype)


def test_rms_norm_takes_heads_that_are_slices(kernels: Kernels, dtype: torch.dtype) -> None:
    """q and k norms run over ``[T, heads, dim]`` cut out of one projection."""
    x, weight = normal(seeded(0), 5, 12, 16).to(dtype)[:, 3:7], normal(seeded(1), 16).to(dtype)
    close(kernels.rms_norm(x, weight, 1e-6), true_norm(x, weight), dtype)


@pytest.mark.parametrize("scale", [1.0, 0.22])
def test_add_rms_norm_equals_its_two_halves(kernels: Kernels, dtype: torch.dtype, scale: float) -> None:
    x, residual, weight = (normal(seeded(i), *size).to(dtype) for i, size in enumerate([(5, 48), (5, 48), (48,)]))
    normed, summed = kernels.add_rms_norm(x, residual, weight, 1e-6, scale=scale)
    close(summed, residual.double() + scale * x.double(), dtype)
    close(normed, true_norm(summed, weight), dtype)
    assert torch.equal(normed, kernels.rms_norm(summed, weight, 1e-6))


@pytest.mark.parametrize("n", [48, 33])
def test_a_norm_before_the_sum_equals_that_norm_by_itself(kernels: Kernels, dtype: torch.dtype, n: int) -> None:
    x, residual = (normal(seeded(i), 5, n).to(dtype) for i in range(2))
    weight, first = (normal(seeded(i), n).to(dtype) for i in range(2, 4))
    joined = kernels.add_rms_norm(x, residual, weight, 1e-6, offset=1.0, first=first)
    before = kernels.rms_norm(x, first, 1e-6, offset=1.0)
    apart = kernels.add_rms_norm(before, residual, weight, 1e-6, offset=1.0)
    assert all(torch.equal(one, other) for one, other in zip(joined, apart, strict=True))
    close(before, true_norm(x, first, 1.0), dtype)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize(("n", "width", "groups"), [(48, 48, 1), (48, 16, 1), (48, 48, 3), (640, 640, 1)])
def test_gated_rms_norm_normalises_groups(
    kernels: Kernels, dtype: torch.dtype, norm_first: bool, n: int, width: int, groups: int
) -> None:
    x, gate, weight = (normal(seeded(i), *size).to(dtype) for i, size in enumerate([(5, n), (5, n), (width,)]))
    seen = kernels.gated_rms_norm(x, gate, weight, 1e-6, norm_first=norm_first, groups=groups)
    opening = F.silu(gate.double())
    value = (x.double() if norm_first else x.double() * opening).reshape(5, -1, width // groups)
    truth = true_norm(value, None).reshape(5, n) * weight.double().repeat(n // width)
    close(seen, truth * opening if norm_first else truth, dtype)


OPENINGS: dict[Opening, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("kind", OPENINGS)
def test_gated_activation_takes_halves_of_one_tensor(kernels: Kernels, dtype: torch.dtype, kind: Opening) -> None:
    both = (normal(seeded(0), 5, 74) * 4).to(dtype)
    gate, up = both.chunk(2, dim=-1)
    opening = OPENINGS[kind](gate.double())
    close(kernels.gated_activation(gate, up, kind), opening * up.double(), dtype)


def test_gates_far_from_zero_saturate(kernels: Kernels) -> None:
    gate = torch.tensor([[-1e4, -200.0, -90.0, 0.0, 90.0, 200.0, 1e4, 3.0]])
    for kind in ("silu", "gelu_tanh"):
        seen = kernels.gated_activation(gate, torch.ones_like(gate), kind)  # type: ignore[arg-type]
        assert torch.allclose(seen, gate.clamp(min=0.0), atol=0.15)
    seen = kernels.gated_activation(gate, torch.ones_like(gate), "sigmoid")
    assert torch.allclose(seen, gate.sigmoid(), atol=1e-6)


@pytest.mark.parametrize("rotary_dim", [8, 6, 2])
def test_rotary_turns_pairs_of_halves(kernels: Kernels, dtype: torch.dtype, rotary_dim: int) -> None:
    x, positions = normal(seeded(0), 5, 3, 8).to(dtype), torch.tensor([0, 1, 7, 30, 2])
    angles = torch.arange(31).double()[:, None] * 10000.0 ** (-torch.arange(rotary_dim // 2).double() / 3)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).float()
    seen = kernels.rotary(x, positions, table)
    half = rotary_dim // 2
    numbers = torch.complex(x[..., :half].double(), x[..., half:rotary_dim].double())
    turned = numbers * torch.polar(torch.ones_like(angles), angles)[positions].unsqueeze(1)
    close(seen, torch.cat((turned.real, turned.imag, x[..., rotary_dim:].double()), dim=-1), dtype)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 16, 33, 70])
@pytest.mark.parametrize(("outs", "ins"), [(48, 64), (37, 20), (1, 1), (130, 321), (50, 2500)])
def test_linear_equals_the_product(kernels: Kernels, dtype: torch.dtype, rows: int, outs: int, ins: int) -> None:
    x, weight, bias = (normal(seeded(i), *size).to(dtype) for i, size in enumerate([(rows, ins), (outs, ins), (outs,)]))
    truth = x.double() @ weight.double().T
    close(kernels.linear(x, weight), truth, dtype)
    close(kernels.linear(x, weight, bias), truth + bias.double(), dtype)
    wide = kernels.linear(x, weight, out_dtype=torch.float32)
    assert wide.dtype == torch.float32
    close(wide.to(dtype), truth, dtype)


def test_linear_takes_rows_of_a_wider_tensor(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = normal(seeded(0), 6, 100).to(dtype)[::2, 10:74], normal(seeded(1), 48, 64).to(dtype)
    close(kernels.linear(x, weight), x.double() @ weight.double().T, dtype)


def test_ops_take_no_tokens_at_all(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = torch.empty(0, 16, dtype=dtype), torch.ones(16, 16, dtype=dtype)
    assert kernels.linear(x, weight).shape == (0, 16)
    assert kernels.rms_norm(x, weight[0], 1e-6).shape == (0, 16)
    assert kernels.gated_activation(x, x, "silu").shape == (0, 16)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("tokens", [1, 3, 20])
def test_experts_are_summed_with_their_weights(
    kernels: Kernels, dtype: torch.dtype, activation: Kind, tokens: int
) -> None:
    experts, k, n, inner = 5, 2, 24, 20
    x = normal(seeded(0), tokens, n).to(dtype)
    gate_up, down = normal(seeded(1), experts, 2 * inner, n).to(dtype) / 5, normal(seeded(2), experts, n, inner) / 5
    down = down.to(dtype)
    ids = torch.rand(tokens, experts, generator=seeded(3)).topk(k).indices
    weights = torch.rand(tokens, k, generator=seeded(4))
    truth = torch.zeros(tokens, n, dtype=torch.float64)
    for t in range(tokens):
        for expert, weight in zip(ids[t].tolist(), weights[t].double(), strict=True):
            gate, up = (gate_up[expert].double() @ x[t].double()).chunk(2)
            opening = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
            truth[t] += weight * (down[expert].double() @ (opening * up))
    close(kernels.moe(x, ids, weights, gate_up, down, activation=activation), truth, dtype)
