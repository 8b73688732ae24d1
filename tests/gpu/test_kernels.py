"""Triton kernels on a GPU at the shapes of real models, against their references; and memory beyond 32-bit offsets."""

import importlib.util

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from benchmarks.gpu.cases import (
    BF16,
    FP32,
    M1_ATTENTION,
    M3_WINDOW,
    Attention,
    Case,
    Delta,
    Mamba,
    decodes,
    prefills,
    product,
    products,
)
from benchmarks.gpu.kernels import error_of
from benchmarks.gpu.world import GRANULE_BYTES, Part, World, view_of
from plait_kernels.copy_units.triton import copy_units
from plait_kernels.gated_delta_rule.reference import gated_delta_rule as gdn_reference
from plait_kernels.paged_attention.reference import paged_attention as attention_reference
from plait_kernels.storage import Slots
from plait_kernels.triton_ops import IMPLEMENTATIONS, JOINED

pytestmark = pytest.mark.gpu

MIXED = (Part(0, 700), Part(1000, 65), Part(3, 64), Part(4000, 1))
CASES = [
    *decodes((3, 32)),
    *products((1, 7, 16)),
    *prefills(),
    M1_ATTENTION.case("M1", "mixed", 5, 900, MIXED),
    M3_WINDOW.case("M3w", "mixed", 5, 2900, MIXED),
    Attention(15, 5, 128).case("odd", "mixed", 3, 77, MIXED),
    Attention(6, 6, 64, window=100).case("odd window", "mixed", 3, 77, MIXED),
    Delta().rule("mixed", 5, MIXED, FP32),
    Delta().rule("mixed bf16", 5, MIXED, BF16),
    Delta(3, 9, 64).rule("odd mixed", 2, MIXED, FP32),
    Mamba().ssd("mixed", 5, MIXED, FP32),
    Mamba().ssd("mixed bf16", 5, MIXED, BF16),
    Mamba(24, 32, 96).ssd("odd mixed", 2, MIXED, FP32),
    Mamba().ssd("long and short", 0, (Part(0, 5000), Part(7, 3)), FP32),
    product("odd", 5, 1003, 517),
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_equals_its_reference_at_real_shapes(case: Case) -> None:
    assert error_of(case, World(torch.device("cuda"))) <= max(case.limit, 1e-6)
    torch.cuda.empty_cache()


def test_pages_beyond_eight_gigabytes_are_read_and_written() -> None:
    """A granule number times its stride passes 2^32: nothing may be computed in 32 bits."""
    world = World(torch.device("cuda"))
    far = (9 << 30) // GRANULE_BYTES
    segments = world.segments(3, 300, (Part(100, 70),))
    arena, k_view, v_view, pages = world.pages(segments, 4, 256, first_granule=far)
    arena[: far * GRANULE_BYTES].fill_(0xFF)
    assert int(pages.table.min()) * k_view.stride(0) * 2 > 8 << 30
    q, k, v = world.normal(segments.tokens, 24, 256).split([16, 4, 4], dim=1)
    args = (q, k, v, k_view, v_view, pages, segments)
    before = arena[far * GRANULE_BYTES :].clone()
    seen = IMPLEMENTATIONS["paged_attention"](*args, scale=1 / 16)
    written = arena[far * GRANULE_BYTES :].clone()
    arena[far * GRANULE_BYTES :].copy_(before)
    truth = attention_reference(*args, scale=1 / 16)
    assert torch.equal(arena[far * GRANULE_BYTES :], written)
    assert float((seen.float() - truth.float()).norm() / truth.float().norm()) < 8e-3
    assert bool((arena[: far * GRANULE_BYTES] == 0xFF).all())


def test_slots_beyond_eight_gigabytes_are_read_and_written() -> None:
    world = World(torch.device("cuda"))
    inner, dim = (32, 128, 128), 128
    unit = 32 * 128 * 128 * 4 // GRANULE_BYTES
    arena = torch.full(((9 << 30) + 6 * unit * GRANULE_BYTES,), 0xFF, dtype=torch.uint8, device="cuda")
    view = view_of(arena, inner, FP32)
    rows = (9 << 30) // GRANULE_BYTES + unit * torch.tensor([3, 0, 2])
    slots = Slots(rows.int().cuda())
    for row in rows.tolist():
        view[row] = world.normal(*inner, dtype=FP32, scale=0.1)
    segments = world.segments(1, 9, (Part(0, 90), Part(5, 3)))
    tokens = segments.tokens
    q, k, v = (world.normal(tokens, heads, dim) for heads in (16, 16, 32))
    a, b = world.normal(tokens, 32), world.normal(tokens, 32)
    args = (q, k, v, a, b, world.normal(32, dtype=FP32), world.normal(32, dtype=FP32), view, slots, segments)
    before = view[rows.cuda()].clone()
    seen, states = IMPLEMENTATIONS["gated_delta_rule"](*args), view[rows.cuda()].clone()
    for row, state in zip(rows.tolist(), before, strict=True):
        view[row] = state
    truth = gdn_reference(*args)
    assert float((seen.float() - truth.float()).norm() / truth.float().norm()) < 1.5e-2
    assert float((states - view[rows.cuda()]).norm() / states.norm()) < 1.5e-2
    sources, targets = rows[:1].int().cuda(), (rows[:1] - 2 * unit).int().cuda()
    copy_units(arena, sources, targets, unit * GRANULE_BYTES)
    assert torch.equal(view[int(targets[0])], view[int(sources[0])])


@pytest.mark.parametrize("name", ["gdn_step", "mamba2_step"])
def test_joined_steps_leave_nothing_to_chance(name: str) -> None:
    """Programs that wait for one another's results: a thousand runs of the same step give the same bits."""
    world = World(torch.device("cuda"))
    case = Delta().step("x", 64, FP32) if name == "gdn_step" else Mamba().step("x", 64, FP32)
    call = case.make(world)
    assert call.arena is not None
    before = call.arena.clone()
    first = JOINED[name](*call.args, **call.options).clone()
    after = call.arena.clone()
    for _ in range(1000):
        call.arena.copy_(before)
        again = JOINED[name](*call.args, **call.options)
        assert torch.equal(first, again)
    assert torch.equal(call.arena, after)


def test_split_products_and_draws_leave_nothing_to_chance() -> None:
    from plait_kernels.linear.triton import LINEAR, linear

    world = World(torch.device("cuda"))
    x, weight = world.normal(3, 4096), world.normal(2560, 4096, scale=0.02)
    with LINEAR.use({"SPLIT": 4}):
        first = linear(x, weight)
        for _ in range(1000):
            assert torch.equal(linear(x, weight), first)


def test_a_captured_decode_is_replayed_for_other_lengths() -> None:
    """Nothing of a launch may hang on lengths: the graph was captured when sequences were short."""
    world = World(torch.device("cuda"))
    segments = world.segments(4, 2000)
    arena, k_view, v_view, pages = world.pages(segments, 4, 256)
    q, k, v = world.normal(4, 24, 256).split([16, 4, 4], dim=1)
    op = IMPLEMENTATIONS["paged_attention"]
    lengths = segments.lengths.clone()
    segments.lengths.fill_(5)
    op(q, k, v, k_view, v_view, pages, segments, scale=1 / 16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(q, k, v, k_view, v_view, pages, segments, scale=1 / 16)
    segments.lengths.copy_(lengths)
    graph.replay()
    truth = attention_reference(q, k, v, k_view, v_view, pages, segments, scale=1 / 16)
    assert float((out.float() - truth.float()).norm() / truth.float().norm()) < 8e-3
    del arena
