"""What holds for every scan: causal convolution, state-space dual, gated delta rule."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait_kernels.segments import Segments
from plait_kernels.select import Kernels
from plait_kernels.storage import Slots
from tests.kernels.scans import Conv, Delta, Inputs, Scan, Ssd, normal, seeded
from tests.kernels.world import EDGE, NAN, Memory, Piece, owned_mask, segments_of, slots_of

SCANS = {
    "conv": Conv(),
    "conv-odd": Conv(channels=5, width=3, biased=False, activation=None),
    "ssd": Ssd(),
    "ssd-odd": Ssd(heads=3, head_dim=5, groups=1, state=7),
    "ssd-wide": Ssd(heads=4, head_dim=64, groups=1, state=64),
    "delta": Delta(),
    "delta-odd": Delta(key_heads=3, value_heads=3, key_dim=5, value_dim=7),
}


@pytest.fixture(params=SCANS.values(), ids=SCANS.keys())
def scan(request: pytest.FixtureRequest) -> Scan:
    assert isinstance(request.param, Scan)
    return request.param


class Stage:
    """A step laid out in memory, each sequence's slot holding its own random state."""

    def __init__(self, scan: Scan, decodes: list[Piece], longer: list[Piece], poison: int = NAN, seed: int = 0) -> None:
        self.scan = scan
        self.segments = segments_of(decodes, longer)
        unit_bytes = math.prod(scan.inner) * scan.state_dtype.itemsize
        count = self.segments.sequences + len(self.segments.chunks)
        self.memory = Memory((count + 2) * (unit_bytes + 512), poison, seed)
        self.view = self.memory.view(scan.inner, scan.state_dtype)
        self.slots = slots_of(self.memory, unit_bytes, self.segments)
        self.random = seeded(seed)
        for row in self.slots.rows.tolist():
            self.view[row] = normal(self.random, *scan.inner).to(scan.state_dtype)

    def inputs(self, dtype: torch.dtype = torch.float32) -> Inputs:
        return self.scan.inputs(self.segments.tokens, self.random, dtype)

    def check(self, kernels: Kernels, inputs: Inputs, tolerance: float = 2e-5) -> None:
        """Runs the step; outputs, states and emitted states equal the truth; every other byte is as before."""
        before = self.memory.bytes.clone()
        states = {row: self.view[row].clone() for row in self.slots.rows.tolist()}
        out = self.scan.run(kernels, inputs, self.view, self.slots, self.segments)
        for row, address in enumerate(self.slots.rows.tolist()):
            start, end = self.segments.starts_host[row : row + 2]
            if start == end:
                continue
            for stop in self._stops(row):
                y, state = self.scan.truth(part(inputs, start, stop), states[address])
                close(out[start:stop], y, tolerance)
                for target in self._holders(row, stop, address):
                    close(self.view[target], state, tolerance if self.scan.state_dtype == torch.float32 else 1e-2)
        written = [*self.slots.rows.tolist(), *(e for e in self._emits() if e >= 0)]
        mask = owned_mask(self.memory, self.view, [(address,) for address in written])
        assert torch.equal(self.memory.bytes[~mask], before[~mask]), "wrote where it owns nothing"

    def _emits(self) -> list[int]:
        emits = self.slots.emits
        return [-1] * len(self.segments.chunks) if emits is None else emits.tolist()

    def _stops(self, row: int) -> list[int]:
        ends = {chunk.end for chunk in self.segments.chunks if chunk.sequence == row and chunk.emit}
        return sorted(ends | {self.segments.starts_host[row + 1]})

    def _holders(self, row: int, stop: int, own: int) -> list[int]:
        """Addresses that must hold the state after token ``stop - 1``."""
        chunks = zip(self.segments.chunks, self._emits(), strict=True)
        holders = [e for chunk, e in chunks if chunk.sequence == row and chunk.end == stop and e >= 0]
        return [*holders, own] if stop == self.segments.starts_host[row + 1] else holders


def part(inputs: Inputs, start: int, stop: int) -> Inputs:
    return {name: tensor[start:stop] for name, tensor in inputs.items()}


def close(seen: Tensor, truth: Tensor, tolerance: float) -> None:
    assert torch.isfinite(seen.float()).all()
    scale = max(1.0, float(truth.abs().max()))
    assert float((seen.double() - truth).abs().max()) <= tolerance * scale


def test_decodes_equal_the_recurrence(kernels: Kernels, scan: Scan, poison: int) -> None:
    stage = Stage(scan, [Piece(5, 1), Piece(0, 1), Piece(70, 1)], [], poison)
    stage.check(kernels, stage.inputs())


@pytest.mark.parametrize("length", EDGE)
def test_a_chunk_of_any_length_equals_the_recurrence(kernels: Kernels, scan: Scan, length: int) -> None:
    stage = Stage(scan, [], [Piece(3, length)])
    stage.check(kernels, stage.inputs())


def test_rows_of_the_chunk_table_carry_and_emit_states(kernels: Kernels, scan: Scan, poison: int) -> None:
    """CASES 7: rows shorter than the convolution; the entries they emit are exact and nothing else is touched."""
    longer = [Piece(9, 80, cuts=(1, 3, 6, 70), emits=(0, 1, 2, 4)), Piece(0, 5, cuts=(2,), emits=(0,))]
    stage = Stage(scan, [], longer, poison)
    stage.check(kernels, stage.inputs())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_mixed_batches_do_not_depend_on_their_order(kernels: Kernels, scan: Scan, order: tuple[int, ...]) -> None:
    """CASES 28: decodes, first chunks, a middle chunk and a sequence without tokens in one step."""
    longer = [Piece(0, 7), Piece(0, 1), Piece(20, 9, cuts=(4,), emits=(0,))]
    stage = Stage(scan, [Piece(3, 1), Piece(8, 1)], [*(longer[i] for i in order), Piece(4, 0)])
    stage.check(kernels, stage.inputs())


@pytest.mark.parametrize("pieces", [(10, 7, 1, 4), (1, 1, 1, 19), (22,), (3, 19)])
def test_a_warm_state_goes_on_in_pieces_of_any_size(kernels: Kernels, scan: Scan, pieces: tuple[int, ...]) -> None:
    """CASES 27: fed in several steps it ends where all at once would."""
    whole = Stage(scan, [], [Piece(0, 22)])
    inputs = whole.inputs()
    start_state = whole.view[int(whole.slots.rows[0])].clone()
    y, state = scan.truth(inputs, start_state)
    begin = 0
    for n in pieces:
        single = [Piece(begin, 1)] if n == 1 else []
        segments = segments_of(single, [] if single else [Piece(begin, n)])
        slots = Slots(whole.slots.rows)
        out = scan.run(kernels, part(inputs, begin, begin + n), whole.view, slots, segments)
        close(out, y[begin : begin + n], 2e-5)
        begin += n
    close(whole.view[int(whole.slots.rows[0])], state, 2e-5)


def test_a_fresh_slot_is_zeros_and_nothing_of_a_former_owner(kernels: Kernels, scan: Scan) -> None:
    """CASES 3: one-token prompts beside running decodes."""
    stage = Stage(scan, [Piece(5, 1), Piece(0, 1)], [Piece(0, 1), Piece(0, 3)])
    for row in stage.slots.rows.tolist()[1:]:
        stage.view[row] = torch.zeros(scan.inner, dtype=scan.state_dtype)
    stage.check(kernels, stage.inputs())


def test_padded_decodes_share_a_reserved_row_and_harm_no_one(kernels: Kernels, scan: Scan, poison: int) -> None:
    """CASES 24: five padding rows, one reserved slot full of poison, junk inputs; a parked slot outside the batch."""
    stage = Stage(scan, [Piece(5, 1)] * 3, [], poison)
    parked = Stage(scan, [Piece(5, 1)] * 3, [], poison).slots  # same layout: only its numbers are used
    assert torch.equal(parked.rows, stage.slots.rows)
    padded = segments_of([Piece(5, 1)] * 8)
    reserved = int(stage.slots.rows[2])
    slots = Slots(torch.tensor([*stage.slots.rows[:2].tolist(), *[reserved] * 6], dtype=torch.int32))
    stage.view[reserved] = float("nan")
    inputs = scan.inputs(8, seeded(7), torch.float32)
    for tensor in inputs.values():
        tensor[2:] = float("nan")
    before = stage.memory.bytes.clone()
    truths = [scan.truth(part(inputs, i, i + 1), stage.view[int(slots.rows[i])]) for i in range(2)]
    out = scan.run(kernels, inputs, stage.view, slots, padded)
    for i, (y, state) in enumerate(truths):
        close(out[i : i + 1], y, 2e-5)
        close(stage.view[int(slots.rows[i])], state, 2e-5)
    mask = owned_mask(stage.memory, stage.view, [(int(row),) for row in slots.rows])
    assert torch.equal(stage.memory.bytes[~mask], before[~mask])


@pytest.mark.parametrize("neighbour", [1, 7, 64])
def test_a_row_does_not_depend_on_its_neighbours(kernels: Kernels, scan: Scan, neighbour: int) -> None:
    """CASES 26, tighter: only where a vector loop ends may move the last bit of an exponential."""
    alone = Stage(scan, [], [Piece(0, 9)])
    inputs = alone.inputs()
    pair = Stage(scan, [Piece(1, 1)] * 3, [Piece(0, neighbour), Piece(0, 9)])
    pair.view[int(pair.slots.rows[4])] = alone.view[int(alone.slots.rows[0])]
    beside = pair.inputs()
    for name, tensor in inputs.items():
        beside[name][-9:] = tensor
    out_alone = scan.run(kernels, inputs, alone.view, alone.slots, alone.segments)
    out_pair = scan.run(kernels, beside, pair.view, pair.slots, pair.segments)
    close(out_pair[-9:], out_alone.double(), 1e-6)
    close(pair.view[int(pair.slots.rows[4])], alone.view[int(alone.slots.rows[0])].double(), 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_inputs_are_computed_in_fp32(kernels: Kernels, scan: Scan, dtype: torch.dtype) -> None:
    stage = Stage(scan, [Piece(5, 1), Piece(2, 1)], [Piece(0, 70, cuts=(9,), emits=(0,)), Piece(3, 2)])
    stage.check(kernels, stage.inputs(dtype), tolerance=1e-2)


def test_a_conv_window_in_the_models_dtype_keeps_its_inputs_exactly(kernels: Kernels, poison: int) -> None:
    scan = Conv(state_dtype=torch.bfloat16)
    stage = Stage(scan, [Piece(5, 1)], [Piece(0, 2), Piece(4, 9, cuts=(3,), emits=(0,))], poison)
    inputs = stage.inputs(torch.bfloat16)
    stage.check(kernels, inputs, tolerance=1e-2)
    assert torch.equal(stage.view[int(stage.slots.rows[2])], inputs["x"][-3:].T)


def test_huge_decays_neither_overflow_nor_lose_small_ones(kernels: Kernels) -> None:
    scan = Ssd(dt_scale=60.0)
    scan.a_log = torch.linspace(-6, 5, scan.heads)
    stage = Stage(scan, [Piece(1, 1)], [Piece(0, 130)])
    stage.check(kernels, stage.inputs())


def test_dt_is_clamped(kernels: Kernels) -> None:
    scan = Ssd(dt_limit=(0.5, 1.5))
    stage = Stage(scan, [Piece(1, 1)], [Piece(0, 70)])
    stage.check(kernels, stage.inputs())


def test_views_into_a_projection_are_taken_as_they_are(kernels: Kernels) -> None:
    """Models hand in slices of one wide projection: rows are strided, and must be neither misread nor refused."""
    scan = Conv()
    stage = Stage(scan, [Piece(5, 1)], [Piece(0, 9)])
    wide = normal(stage.random, stage.segments.tokens, 3 * scan.channels)
    stage.check(kernels, {"x": wide[:, scan.channels : 2 * scan.channels]})
    ssd = Ssd()
    stage = Stage(ssd, [Piece(5, 1)], [Piece(0, 9)])
    widths = (ssd.heads * ssd.head_dim, ssd.groups * ssd.state, ssd.groups * ssd.state, ssd.heads, 3)
    x, b, c, dt, _ = normal(stage.random, stage.segments.tokens, sum(widths)).split(widths, dim=-1)
    inputs = {
        "x": x.unflatten(-1, (ssd.heads, -1)),
        "b": b.unflatten(-1, (ssd.groups, -1)),
        "c": c.unflatten(-1, (ssd.groups, -1)),
        "dt": dt,
    }
    stage.check(kernels, inputs)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[Piece], list[Piece]]:
    decodes = [Piece(draw(st.integers(0, 9)), 1) for _ in range(draw(st.integers(0, 3)))]
    longer = []
    for _ in range(draw(st.integers(0 if decodes else 1, 3))):
        new = draw(st.integers(1, 20))
        cuts = tuple(sorted(draw(st.sets(st.integers(1, max(1, new - 1)), max_size=3)))) if new > 1 else ()
        emits = tuple(sorted(draw(st.sets(st.integers(0, len(cuts))))))
        longer.append(Piece(draw(st.integers(0, 9)), new, cuts, emits))
    return decodes, longer


@pytest.mark.parametrize("name", ["conv", "ssd", "delta"])
def test_any_step_equals_the_recurrence(kernels: Kernels, name: str) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(steps(), st.integers(0, 99))
    def run(step: tuple[list[Piece], list[Piece]], seed: int) -> None:
        stage = Stage(SCANS[name], *step, seed=seed)
        stage.check(kernels, stage.inputs())

    run()


def test_chunk_table_names_the_rows() -> None:
    segments: Segments = segments_of([Piece(1, 1)], [Piece(0, 5, cuts=(2,))])
    assert segments.chunk_table.tolist() == [[1, 3, 1], [3, 6, 1]]
