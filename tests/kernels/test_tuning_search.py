"""A search takes the fastest configuration that is right, and nothing that goes wrong."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from plait_kernels import tuning
from plait_kernels.storage import Pages, Slots
from plait_kernels.tuning import Config, Tunable, asking
from plait_kernels.tuning.op_call import OpCall, Truth, fill
from plait_kernels.tuning.search import candidates, search

ARENA = torch.zeros(64 * 256, dtype=torch.uint8)
CPU = torch.device("cpu")


class FakeBench:
    """Time is what ``Op`` says of its last call; it is over after ``most`` timings of others than the default."""

    def __init__(self, op: "Op", most: int = 1000) -> None:
        self.op, self.left, self.compiled, self.worth = op, most, 0, list[float]()

    def seconds_each(self, calls: Sequence[Callable[[], object]], worth_seconds: float) -> float:
        self.worth.append(worth_seconds)
        self.left -= len(self.worth) > 1
        for call in calls:
            call()
        return self.op.seconds

    def compile(self, calls: Iterable[Callable[[], object]]) -> None:
        self.compiled += len(list(calls))

    def over(self) -> bool:
        return self.left <= 0


class Op:
    """An op whose configurations have times; it doubles, and adds one to its slots. ``breaks`` is done to its result
    and its state by the configuration that is ``wrong``."""

    def __init__(self, tunable: Tunable, seconds: dict[int, float], *, wrong: int = -1, failing: int = -1) -> None:
        self.tunable, self.of, self.wrong, self.failing = tunable, seconds, wrong, failing
        self.seconds = 0.0
        self.breaks: Callable[[tuple[Tensor, Tensor]], Any] = lambda left: left[0].mul_(3)

    def __call__(self, x: Tensor, view: Tensor, slots: Slots) -> Tensor:
        n = self.tunable.config(x.device, 1)["N"]
        if n == self.failing:
            raise RuntimeError("out of resource: shared memory")
        self.seconds = self.of[n]
        out = 2 * x
        view[slots.rows.long()] += 1
        if n == self.wrong:
            self.breaks((out, view))
        return out


@pytest.fixture
def tunable() -> Iterator[Tunable]:
    made = Tunable("made up", {"N": 1}, tuple({"N": n} for n in (1, 2, 4, 8)))
    yield made
    tuning._registered.pop("made up")


def call_of(op: Callable[..., Tensor]) -> OpCall:
    view = ARENA.view(torch.float32).as_strided((60, 3, 8), (64, 8, 1))
    return OpCall(op, (torch.linspace(-1, 1, 24).reshape(2, 12), view, Slots(torch.tensor([8, 3]).int())), {})


def found(tunable: Tunable, op: Op, bench: FakeBench | None = None) -> tuple[Config, int, int]:
    finding = search(tunable, [call_of(op)], ARENA, bench or FakeBench(op))
    return finding.config, finding.tried, finding.failed


def test_the_fastest_is_chosen(tunable: Tunable) -> None:
    op = Op(tunable, {1: 10.0, 2: 7.0, 4: 5.0, 8: 6.0})
    finding = search(tunable, [call_of(op), call_of(op)], ARENA, bench := FakeBench(op))
    assert (finding.config, finding.seconds, finding.default_seconds) == ({"N": 4}, 5.0, 10.0)
    assert bench.compiled == 3
    assert bench.worth == [float("inf"), 10.0, 7.0, 5.0], "what is slower than the best so far need not be exact"


def test_what_is_hardly_faster_than_the_default_is_not_chosen(tunable: Tunable) -> None:
    assert found(tunable, Op(tunable, {1: 10.0, 2: 9.8, 4: 11.0, 8: 9.9})) == ({"N": 1}, 3, 0)


@pytest.mark.parametrize(
    "breaks",
    [
        lambda left: left[0].mul_(3),
        lambda left: left[0][1, 5].fill_(float("nan")),
        lambda left: left[0][0, 3].add_(1),
        lambda left: left[1][3, 2, 7].zero_(),
    ],
    ids=["all of it", "a hole", "one number", "one number of the state"],
)
def test_what_is_wrong_is_not_chosen(tunable: Tunable, breaks: Callable[[tuple[Tensor, Tensor]], Any]) -> None:
    op = Op(tunable, {1: 10.0, 2: 7.0, 4: 5.0, 8: 6.0}, wrong=4)
    op.breaks = breaks
    assert found(tunable, op) == ({"N": 8}, 3, 1)


def test_rounding_is_not_wrong(tunable: Tunable) -> None:
    op = Op(tunable, {1: 10.0, 2: 7.0, 4: 5.0, 8: 6.0}, wrong=4)
    op.breaks = lambda left: left[0].mul_(1.0001)
    assert found(tunable, op) == ({"N": 4}, 3, 0)


def test_what_fails_is_not_chosen(tunable: Tunable) -> None:
    assert found(tunable, Op(tunable, {1: 10.0, 2: 7.0, 8: 6.0}, failing=4)) == ({"N": 8}, 3, 1)


def test_nothing_is_tried_against_a_result_that_is_no_number(tunable: Tunable) -> None:
    op = Op(tunable, {1: 10.0, 2: 7.0, 4: 5.0, 8: 6.0}, wrong=1)
    op.breaks = lambda left: left[0].fill_(float("nan"))
    assert found(tunable, op) == ({"N": 1}, 0, 0)


def test_when_the_time_is_over_the_best_so_far_is_taken(tunable: Tunable) -> None:
    op = Op(tunable, {1: 10.0, 2: 7.0, 4: 5.0, 8: 3.0})
    assert found(tunable, op, FakeBench(op, most=2)) == ({"N": 4}, 2, 0)


def test_the_state_is_the_same_before_every_call(tunable: Tunable) -> None:
    """Else a step that goes on from its own end would be compared with one that did not."""
    op = Op(tunable, dict.fromkeys((1, 2, 4, 8), 1.0))
    truth = Truth(call_of(op), ARENA)
    assert truth.error() == truth.error() == 0.0


def test_pages_that_are_read_hold_numbers_and_written_ones_the_same_each_time() -> None:
    arena = torch.full((64 * 256,), 0xFF, dtype=torch.uint8)
    view = arena.view(torch.float32).as_strided((60, 4, 2), (64, 2, 1))
    pages = Pages(torch.tensor([[5, 6], [9, 5]]).int(), torch.tensor([6, 9]), torch.tensor([0, 3]), 4)

    def op(view: Tensor, pages: Pages) -> Tensor:
        view[pages.write_pages, pages.write_offsets] += 1
        return view[pages.table.long()].flatten(1)

    call = OpCall(op, (view,), {"pages": pages})
    assert [units.tolist() for _, units in call.read(arena)] == [[5, 6, 9]]
    assert [units.tolist() for _, units in call.written(arena)] == [[6, 9]]
    truth = Truth(call, arena)
    assert truth.finite
    assert truth.error() == 0.0


def test_memory_is_filled_with_the_same_numbers_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait_kernels.tuning.op_call.BLOCK_BYTES", 2 * 32)
    view = torch.zeros(64 * 64).as_strided((60, 8), (64, 1))
    fill(view, torch.tensor([3, 20, 7, 9, 50]))
    assert (view[3] == view[7]).all()
    assert (view[20] == view[9]).all()
    assert (view[50] == view[3]).all()
    assert (view[3] != view[20]).any()
    assert not view[4].any()


def test_candidates_are_what_was_best_somewhere_and_some_of_all_others() -> None:
    from_table = [{"N": n, "W": 1} for n in (3, 3, 5, 90)]  # 90 is no option any more
    tunable = Tunable("made up", {"N": 0, "W": 1}, tuple({"N": n} for n in range(50)))
    with pytest.MonkeyPatch.context() as patch:
        table = {"made up": {str(i): config for i, config in enumerate(from_table)}}
        patch.setattr("plait_kernels.tuning.search.read_table", lambda path: table if path.stem == "h200" else {})
        chosen = candidates(tunable, 10)
    tuning._registered.pop("made up")
    assert chosen[:2] == [{"N": 3, "W": 1}, {"N": 5, "W": 1}]
    assert len(chosen) == 10
    assert {"N": 0, "W": 1} not in chosen
    assert max(config["N"] for config in chosen) > 40


def test_who_asks_is_heard_by_all_that_listen_and_by_nobody_else(tunable: Tunable) -> None:
    with asking() as outer:
        tunable.config(CPU, 1, 2)
        with asking() as inner, tunable.use({"N": 2}):
            tunable.config(CPU, 3)
        tunable.config(CPU, 4)
    tunable.config(CPU, 5)
    assert list(inner) == [("made up", (3,))]
    assert list(outer) == [("made up", (1, 2)), ("made up", (3,)), ("made up", (4,))]
