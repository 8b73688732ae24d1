"""Paged attention against a dense sum in fp64."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait_kernels.select import Kernels
from tests.kernels import naive
from tests.kernels.scans import normal, seeded
from tests.kernels.world import EDGE, LARGE, NAN, PAGE, WINDOW, Memory, Piece, owned_mask, pages_of, segments_of

Rule = dict[str, object]


@dataclass
class Shape:
    heads: int = 4
    kv_heads: int = 2
    dim: int = 8
    value_dim: int = 8
    page: int = PAGE

    @property
    def scale(self) -> float:
        return self.dim**-0.5


SHAPES = {
    "gqa": Shape(),
    "mha-odd": Shape(heads=3, kv_heads=3, dim=5, value_dim=5),
    "mqa": Shape(heads=5, kv_heads=1, dim=16, value_dim=16, page=16),
    "value-wider": Shape(heads=6, kv_heads=2, dim=8, value_dim=24),
    "wide": Shape(heads=5, kv_heads=1, dim=64, value_dim=64, page=16),
    "very-wide": Shape(heads=2, kv_heads=1, dim=256, value_dim=256, page=16),
}
RULES: dict[str, Rule] = {
    "full": {},
    "window": {"window": WINDOW},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True, "window": WINDOW},
}


class Stage:
    """A step over sequences whose history lies in pages already; all else in the arena is poison."""

    def __init__(
        self,
        shape: Shape,
        rule: Rule,
        decodes: list[Piece],
        longer: list[Piece],
        poison: int = NAN,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        self.shape, self.poison, self.dtype = shape, poison, dtype
        window = rule.get("window")
        self.window = window if isinstance(window, int) else None
        softcap = rule.get("softcap")
        self.softcap = softcap if isinstance(softcap, float) else None
        self.sinks = normal(seeded(5), shape.heads) if "sinks" in rule else None
        self.segments = segments_of(decodes, longer)
        key_bytes = -(-shape.page * shape.kv_heads * shape.dim * dtype.itemsize // 128) * 128
        value_bytes = shape.page * shape.kv_heads * shape.value_dim * dtype.itemsize
        pages = sum(-(-n // shape.page) for n in self.segments.lengths_host) + 2
        self.memory = Memory((pages + 1) * (key_bytes + value_bytes + 512), poison, seed)
        self.k_view = self.memory.view((shape.page, shape.kv_heads, shape.dim), dtype)
        self.v_view = self.memory.view((shape.page, shape.kv_heads, shape.value_dim), dtype, offset=key_bytes)
        self.pages = pages_of(self.memory, key_bytes + value_bytes, self.segments, shape.page, self.window)
        random = seeded(seed)
        self.q = normal(random, self.segments.tokens, shape.heads, shape.dim).to(dtype)
        self.keys = [normal(random, n, shape.kv_heads, shape.dim).to(dtype) for n in self.segments.lengths_host]
        self.values = [normal(random, n, shape.kv_heads, shape.value_dim).to(dtype) for n in self.segments.lengths_host]
        for row in range(self.segments.sequences):
            self._lay_history(row)

    def new_tokens(self, row: int) -> tuple[int, int]:
        start, end = self.segments.starts_host[row : row + 2]
        return start, end

    def _lay_history(self, row: int) -> None:
        start, end = self.new_tokens(row)
        history = self.segments.lengths_host[row] - (end - start)
        needed = 0 if self.window is None else max(0, history - self.window + 1)
        for position in range(needed, history):
            at = int(self.pages.table[row, position // self.shape.page]), position % self.shape.page
            self.k_view[at] = self.keys[row][position]
            self.v_view[at] = self.values[row][position]

    def fresh(self, whole: list[Tensor]) -> Tensor:
        """The step's own part of every sequence, as the flat batch."""
        parts = []
        for row, tensor in enumerate(whole):
            start, end = self.new_tokens(row)
            parts.append(tensor[len(tensor) - (end - start) :])
        return torch.cat(parts)

    def run(self, kernels: Kernels) -> Tensor:
        return kernels.paged_attention(
            self.q,
            self.fresh(self.keys),
            self.fresh(self.values),
            self.k_view,
            self.v_view,
            self.pages,
            self.segments,
            scale=self.shape.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=self.sinks,
        )

    def check(self, kernels: Kernels, tolerance: float = 1e-5) -> None:
        before = self.memory.bytes.clone()
        out = self.run(kernels)
        assert out.shape == (self.segments.tokens, self.shape.heads, self.shape.value_dim)
        assert out.dtype == self.dtype
        for row in range(self.segments.sequences):
            start, end = self.new_tokens(row)
            if start < end:
                truth = naive.attention(
                    self.q[start:end],
                    self.keys[row],
                    self.values[row],
                    scale=self.shape.scale,
                    window=self.window,
                    softcap=self.softcap,
                    sinks=self.sinks,
                )
                assert float((out[start:end].double() - truth).abs().max()) <= tolerance
        self._check_ownership(before)

    def _check_ownership(self, before: Tensor) -> None:
        """New entries lie where the table says, bit for bit; nothing else has changed."""
        entries = list(zip(self.pages.write_pages.tolist(), self.pages.write_offsets.tolist(), strict=True))
        for view, whole in ((self.k_view, self.keys), (self.v_view, self.values)):
            fresh = self.fresh(whole)
            assert all(torch.equal(view[entry], fresh[i]) for i, entry in enumerate(entries))
        mask = owned_mask(self.memory, self.k_view, entries) | owned_mask(self.memory, self.v_view, entries)
        assert torch.equal(self.memory.bytes[~mask], before[~mask]), "wrote where it owns nothing"


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Shape:
    assert isinstance(request.param, Shape)
    return request.param


@pytest.fixture(params=RULES.values(), ids=RULES.keys())
def rule(request: pytest.FixtureRequest) -> Rule:
    assert isinstance(request.param, dict)
    return request.param


def test_decodes_equal_the_dense_sum_whatever_lies_beside(
    kernels: Kernels, shape: Shape, rule: Rule, poison: int
) -> None:
    """CASES 4: rows of the last page that nothing has reached are NaN, or huge."""
    Stage(shape, rule, [Piece(n - 1, 1) for n in (1, 4, 5, 9, 33, 70)], [], poison).check(kernels)


def test_prefill_chunks_equal_the_dense_sum(kernels: Kernels, shape: Shape, rule: Rule, poison: int) -> None:
    Stage(shape, rule, [], [Piece(0, 19), Piece(13, 7), Piece(21, 70), Piece(5, 1)], poison).check(kernels)


@pytest.mark.parametrize("length", EDGE)
@pytest.mark.parametrize("name", ["full", "window"])
def test_every_edge_length_is_exact(kernels: Kernels, length: int, name: str) -> None:
    Stage(Shape(), RULES[name], [Piece(length - 1, 1)], [Piece(0, length), Piece(length, 3)]).check(kernels)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_mixed_batches_do_not_depend_on_their_order(kernels: Kernels, rule: Rule, order: tuple[int, ...]) -> None:
    """CASES 28, with a sequence that has no tokens in the step."""
    longer = [Piece(0, 7), Piece(0, 1), Piece(20, 9)]
    Stage(Shape(), rule, [Piece(3, 1), Piece(8, 1)], [*(longer[i] for i in order), Piece(4, 0)]).check(kernels)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_entries_are_summed_in_fp32(kernels: Kernels, shape: Shape, dtype: torch.dtype) -> None:
    poison = LARGE
    Stage(shape, {}, [Piece(40, 1)], [Piece(9, 70)], poison, dtype).check(kernels, tolerance=2e-2)


def test_padded_decodes_write_only_the_reserved_page(kernels: Kernels) -> None:
    stage = Stage(Shape(), {}, [Piece(5, 1), Piece(9, 1), Piece(0, 1), Piece(0, 1), Piece(0, 1)], [])
    reserved = int(stage.pages.table[0, -1])
    stage.pages.table[2:] = reserved
    stage.pages.write_pages[2:] = reserved
    stage.pages.write_offsets[2:] = 0
    stage.q[2:] = math.nan
    before = stage.memory.bytes.clone()
    out = stage.run(kernels)
    for row in (0, 1):
        truth = naive.attention(stage.q[row : row + 1], stage.keys[row], stage.values[row], scale=stage.shape.scale)
        assert float((out[row].double() - truth).abs().max()) < 1e-5
    entries = list(zip(stage.pages.write_pages.tolist(), stage.pages.write_offsets.tolist(), strict=True))
    mask = owned_mask(stage.memory, stage.k_view, entries) | owned_mask(stage.memory, stage.v_view, entries)
    assert torch.equal(stage.memory.bytes[~mask], before[~mask])


@pytest.mark.parametrize("neighbour", [1, 7, 64])
def test_a_row_does_not_depend_on_its_neighbours(kernels: Kernels, neighbour: int) -> None:
    alone = Stage(Shape(), {}, [], [Piece(0, 9)])
    pair = Stage(Shape(), {}, [Piece(11, 1)], [Piece(2, neighbour), Piece(0, 9)])
    pair.q[-9:], pair.keys[2], pair.values[2] = alone.q, alone.keys[0], alone.values[0]
    difference = alone.run(kernels) - pair.run(kernels)[-9:]
    assert float(difference.abs().max()) < 1e-6


def test_heads_may_be_slices_of_one_projection(kernels: Kernels) -> None:
    stage = Stage(Shape(), {}, [Piece(5, 1)], [Piece(3, 9)])
    q, k, v = stage.q, stage.fresh(stage.keys), stage.fresh(stage.values)
    wide = torch.cat((q, k, v), dim=1).flatten(1).unflatten(1, (8, 8))
    out = kernels.paged_attention(
        wide[:, :4], wide[:, 4:6], wide[:, 6:], stage.k_view, stage.v_view, stage.pages, stage.segments, scale=0.3
    )
    truth = naive.attention(q[:1], stage.keys[0], stage.values[0], scale=0.3)
    assert float((out[:1].double() - truth).abs().max()) < 1e-5


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Piece], list[Piece]]:
    decodes = [Piece(draw(st.integers(0, 30)), 1) for _ in range(draw(st.integers(0, 3)))]
    n_longer = draw(st.integers(0 if decodes else 1, 3))
    return decodes, [Piece(draw(st.integers(0, 30)), draw(st.integers(1, 20))) for _ in range(n_longer)]


def test_any_step_equals_the_dense_sum(kernels: Kernels, rule: Rule) -> None:
    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(steps(), st.integers(0, 99))
    def run(step: tuple[list[Piece], list[Piece]], seed: int) -> None:
        Stage(Shape(), rule, *step, seed=seed).check(kernels)

    run()
