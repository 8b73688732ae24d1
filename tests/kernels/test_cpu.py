"""The compiled kernels: what they promise beyond their references, and how they come to be."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from plait_kernels.cpu import build
from plait_kernels.cpu.tape import NotReplayableError
from plait_kernels.select import Kernels, select
from plait_kernels.storage import Slots
from tests.kernels import test_paged_attention as attention
from tests.kernels.scans import Conv, Delta, Scan, Ssd, normal, seeded
from tests.kernels.test_scans import Stage, part
from tests.kernels.world import Piece, segments_of

DTYPES = [torch.float32, torch.bfloat16]
SCANS = {"conv": Conv(), "ssd": Ssd(), "ssd-wide": Ssd(4, 64, 1, 64), "delta": Delta(), "delta-odd": Delta(3, 3, 5, 7)}


@pytest.fixture
def kernels(compiled: Kernels) -> Kernels:
    if compiled.choices["linear"].implementation != "cpu":
        pytest.skip(f"no compiled kernels here: {compiled.choices['linear'].reason}")
    return compiled


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outs", "ins"), [(130, 320), (48, 321), (7, 40), (50, 2500)])
def test_a_row_of_linear_is_the_same_to_the_bit_in_every_batch(
    kernels: Kernels, dtype: torch.dtype, outs: int, ins: int
) -> None:
    x, weight, bias = (normal(seeded(i), *size).to(dtype) for i, size in enumerate([(350, ins), (outs, ins), (outs,)]))
    whole = kernels.linear(x, weight, bias)
    for size in (1, 2, 3, 5, 16, 17, 31, 32, 64, 65, 337):
        assert torch.equal(torch.cat([kernels.linear(rows, weight, bias) for rows in x.split(size)]), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS.keys())
def test_a_scan_is_the_same_to_the_bit_however_it_is_cut(kernels: Kernels, scan: Scan, dtype: torch.dtype) -> None:
    """So a state that decode built and one that prefill built are one and the same."""
    whole = Stage(scan, [], [Piece(0, 83)])
    inputs = whole.inputs(dtype)
    address = int(whole.slots.rows[0])
    start = whole.view[address].clone()
    truth = scan.run(kernels, inputs, whole.view, whole.slots, whole.segments)
    end = whole.view[address].clone()
    for sizes in ([1] * 83, [64, 19], [3, 1, 2, 77], [82, 1]):
        whole.view[address] = start
        seen, begin = [], 0
        for n in sizes:
            segments = segments_of([Piece(begin, 1)]) if n == 1 else segments_of([], [Piece(begin, n, cuts=(n // 2,))])
            slots = Slots(whole.slots.rows)
            seen.append(scan.run(kernels, part(inputs, begin, begin + n), whole.view, slots, segments))
            begin += n
        assert torch.equal(torch.cat(seen), truth)
        assert torch.equal(whole.view[address], end)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", attention.RULES.values(), ids=attention.RULES.keys())
@pytest.mark.parametrize("name", ["gqa", "mqa", "value-wider", "wide"])
def test_attention_is_the_same_to_the_bit_in_decode_and_in_any_chunk(
    kernels: Kernels, name: str, rule: attention.Rule, dtype: torch.dtype
) -> None:
    shape = attention.SHAPES[name]
    whole = attention.Stage(shape, rule, [], [Piece(0, 150)], dtype=dtype)
    truth = whole.run(kernels)
    for history in (0, 1, 63, 64, 100, 149):
        for stop in {history + 1, 150}:
            piece = Piece(history, stop - history)
            decodes, longer = ([piece], []) if piece.new == 1 else ([], [piece])
            stage = attention.Stage(shape, rule, decodes, longer, dtype=dtype)
            stage.q = whole.q[history:stop]
            stage.keys, stage.values = [whole.keys[0][:stop]], [whole.values[0][:stop]]
            stage._lay_history(0)
            assert torch.equal(stage.run(kernels), truth[history:stop])


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_nothing(kernels: Kernels) -> None:
    def results() -> list[Tensor]:
        x, weight = normal(seeded(0), 200, 320), normal(seeded(1), 700, 320)
        ssd, delta, conv = Ssd(10, 64, 1, 64), Delta(2, 4, 64, 64), Conv(channels=640)
        scans = [Stage(scan, [Piece(4, 1)] * 3, [Piece(0, 200, cuts=(70,), emits=(0,))]) for scan in (ssd, delta, conv)]
        seen = [kernels.linear(x, weight), kernels.rms_norm(x, weight[0], 1e-5), kernels.gated_activation(x, x, "silu")]
        for stage in scans:
            seen.append(stage.scan.run(kernels, stage.inputs(), stage.view, stage.slots, stage.segments))
            seen.append(stage.memory.bytes)
        wide = attention.Stage(attention.SHAPES["wide"], {}, [Piece(300, 1)] * 2, [Piece(9, 200)])
        return [*seen, wide.run(kernels)]

    torch.set_num_threads(1)
    kernels.upgrade()
    alone = results()
    torch.set_num_threads(3)
    kernels.upgrade()
    together = results()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_recorded_step_follows_its_inputs(kernels: Kernels) -> None:
    """Compiled ops and PyTorch's own, views between them, and a state that goes on from replay to replay."""
    scan = Conv(channels=24)
    stage = Stage(scan, [Piece(5, 1), Piece(8, 1)], [])
    table, ids, weight = normal(seeded(0), 9, 48), torch.tensor([3, 4]), normal(seeded(1), 24, 24)

    def step() -> Tensor:
        left, right = (torch.nn.functional.embedding(ids, table) * 3.0).chunk(2, dim=-1)
        mixed = scan.run(kernels, {"x": left}, stage.view, stage.slots, stage.segments)
        return kernels.linear(kernels.gated_activation(mixed, right, "silu"), weight)

    start = stage.memory.bytes.clone()
    recording = kernels.record(step)
    for tokens in ([1, 2], [8, 8], [0, 7]):
        ids.copy_(torch.tensor(tokens))
        stage.memory.bytes.copy_(start)
        expected = step()
        after = stage.memory.bytes.clone()
        stage.memory.bytes.copy_(start)
        recording.run()
        assert torch.equal(recording.result, expected)
        assert torch.equal(stage.memory.bytes, after)


def test_a_change_of_dtype_is_replayed(kernels: Kernels) -> None:
    """``to`` says of itself that its result may be its input; where it is not, it has to be done again."""
    x = normal(seeded(0), 2, 8).bfloat16()
    with torch.inference_mode():
        recording = kernels.record(lambda: x.float() / 2)
    x.copy_(normal(seeded(1), 2, 8))
    recording.run()
    assert torch.equal(recording.result, x.float() / 2)


def test_a_step_that_looks_at_a_value_is_not_recorded(kernels: Kernels) -> None:
    x = normal(seeded(0), 2, 8)
    with pytest.raises(NotReplayableError, match="reads values"):
        kernels.record(lambda: kernels.rms_norm(x, None, 1e-6) if float(x[0, 0]) > 9 else x)
    for read in (Tensor.tolist, Tensor.numpy, Tensor.nonzero, bool):
        with pytest.raises(NotReplayableError, match="reads values"):
            kernels.record(lambda read=read: read(x[0, 0]) and x)  # type: ignore[misc]
    assert torch.equal(kernels.record(lambda: x * 2).result, x * 2)
    with pytest.raises(NotReplayableError, match="no compiled kernels"):
        Kernels().record(lambda: x)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_may_be_ones_own(kernels: Kernels) -> None:
    assert kernels._library is not None
    kernels.use_threads(3)
    kernels.upgrade()
    assert kernels._library._threads == 3
    kernels._threads = None
    kernels.upgrade()
    assert kernels._library._threads == torch.get_num_threads()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's cache with nothing in it, and sources of our own."""
    monkeypatch.setattr(build, "_cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    build.target.cache_clear()
    yield tmp_path
    build.target.cache_clear()


def test_without_a_compiler_the_references_stay_and_say_why(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    kernels = select(torch.device("cpu"), torch.float32)
    assert kernels.choices["linear"].implementation == "reference"
    assert "no C++ compiler found" in kernels.choices["linear"].reason
    assert not kernels.upgrade()
    assert not list(cache.iterdir())


def test_a_failing_compiler_leaves_the_references_and_its_first_error(cache: Path) -> None:
    (cache / "broken.cpp").write_text("int f() { return mistake; }")
    kernels = select(torch.device("cpu"), torch.float32)
    assert "until" in kernels.choices["linear"].reason
    kernels.wait()
    assert kernels.choices["linear"].implementation == "reference"
    assert "mistake" in kernels.choices["linear"].reason
    assert not list((cache / "cache").iterdir())


def test_a_library_that_cannot_be_loaded_leaves_the_references(cache: Path) -> None:
    (cache / "odd.cpp").write_text("int f() { return 1; }")
    library = build.target().library
    library.parent.mkdir(parents=True)
    library.write_text("not a library")
    kernels = select(torch.device("cpu"), torch.float32)
    assert "cannot load" in kernels.choices["linear"].reason


def test_a_build_appears_whole_and_is_found_by_the_next_start(cache: Path) -> None:
    (cache / "one.cpp").write_text('extern "C" int one() { return 1; }')
    work = build.Build(build.target())
    work.wait()
    assert work.done()
    assert [path.name for path in (cache / "cache").iterdir()] == [build.target().library.name]


def test_a_build_ends_with_its_process(cache: Path) -> None:
    (cache / "slow.cpp").write_text("#include <regex>\n#include <map>\n#include <functional>\nstd::regex r;")
    kernels = select(torch.device("cpu"), torch.float32)
    kernels.close()
    assert not kernels.upgrade()
    assert not list((cache / "cache").glob("*.so"))


def test_a_dtype_without_compiled_kernels_is_served_by_the_references() -> None:
    kernels = select(torch.device("cpu"), torch.float16)
    assert {choice.implementation for choice in kernels.choices.values()} == {"reference"}
    assert "float16" in kernels.choices["ssd"].reason
