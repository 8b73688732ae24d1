"""Once on a GPU that was not measured: what is tried, in which order, what is kept, and that nothing of it hurts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait_engine.build import build_engine
from plait_engine.config import EngineConfig
from plait_engine.demo_model import DEMO_FOLDER
from plait_engine.engine import Engine
from plait_engine.runner.own_rows import OwnRows
from plait_engine.runner.tuning import tune
from plait_engine.runner.tuning_cases import cases_of
from plait_engine.scheduler.scheduler import SchedulerLimits
from plait_kernels import tuning
from plait_kernels.linear.reference import linear
from plait_kernels.tuning import Ask, Tunable, asking, forget, found_path, key_name, read_table
from tests.engine.rig import Rig
from tests.engine.tiny import ask, prompt_of, run, tiny_engine

KIND, PART = "made_up_kind", "made_up_part"


class Bench:
    """Times are those that ``Linear`` gives its last call."""

    def __init__(self, op: "Linear", most: int = 1000) -> None:
        self.op, self.left = op, most
        self.tried: list[float] = []

    def seconds_each(self, calls: Sequence[Callable[[], object]], worth_seconds: float) -> float:
        del worth_seconds
        self.left -= 1
        for call in calls:
            call()
        self.tried.append(self.op.seconds)
        return self.op.seconds

    def compile(self, calls: Iterable[Callable[[], object]]) -> None:
        del calls

    def over(self) -> bool:
        return self.left <= 0


class Linear:
    """The reference, as if it had two tunables; its kind 2 asks for the second one too."""

    def __init__(self) -> None:
        self.kind = Tunable(KIND, {"N": 1}, ({"N": 1}, {"N": 2}, {"N": 3}))
        self.part = Tunable(PART, {"N": 1}, ({"N": 1}, {"N": 2}))
        self.best, self.wrong = 2, 0
        self.seconds = 0.0
        self.calls = 0

    def __call__(self, x: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
        self.calls += 1
        kind = self.kind.config(x.device, *weight.shape)["N"]
        part = self.part.config(x.device, len(weight))["N"] if kind == 2 else 1
        self.seconds = len(weight) * (1.0 if kind == self.best else 2.0) / part
        out = linear(x, weight, *rest, **options)
        return -out if kind == self.wrong else out


@pytest.fixture
def op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Linear]:
    monkeypatch.setattr(tuning, "CACHE", tmp_path / "tuning")
    forget()
    yield Linear()
    tuning._registered.pop(KIND)
    tuning._registered.pop(PART)
    forget()


def engine_with(op: Linear, name: str = "granite", **settings: Any) -> tuple[Engine, list[Ask]]:
    """And what its steps ask for."""
    engine = tiny_engine(name, padding=1, **settings)
    engine.runner.kernels.linear = op
    with asking() as asked:
        run(engine, ask("a", prompt_of(30)))
    return engine, list(asked)


def tuned(engine: Engine, asked: Iterable[Ask], bench: Bench) -> list[str]:
    lines: list[str] = []
    tune(engine.runner, engine.ledger, engine.scheduler.limits, asked, lines.append, bench)
    return lines


def test_the_first_start_finds_and_the_second_one_knows(op: Linear) -> None:
    engine, asked = engine_with(op)
    lines = tuned(engine, asked, Bench(op))
    assert len(asked) > 3
    assert f"cpu was not measured for {len(asked)} kernels" in lines[0]
    assert str(found_path("cpu")) in lines[-1]
    table = read_table(found_path("cpu"))
    assert table[KIND] == {key_name(key): {"N": 2} for kernel, key in asked}
    assert set(table[PART]) == {str(key[0]) for kernel, key in asked}, "what only the kind that was found asks for"
    assert all(config == {"N": 2} for config in table[PART].values())
    forget()
    op.calls = 0
    second, asked = engine_with(op)
    calls = op.calls
    assert tuned(second, asked, Bench(op)) == [f"tuning: {len(asked)} configurations from {found_path('cpu')}"]
    assert op.calls == calls


def test_a_line_says_how_far_it_is_and_what_was_found(op: Linear) -> None:
    op.best = 3
    engine, asked = engine_with(op)
    lines = tuned(engine, asked, Bench(op))
    assert len(lines) == len(asked) + 2
    for number, line in enumerate(lines[1:-1], 1):
        assert line.startswith(f"tuning {number} of {len(asked)}: {KIND} ")
    first = int(lines[1].split()[5].split("x")[0])
    assert f" {first * 1e6:.1f} us, by default {first * 2e6:.1f} (2 tried); 0 s" in lines[1]
    assert f"{len(asked)} of {len(asked)} are faster now" in lines[-1]


def test_what_steps_spend_most_time_in_is_tried_first(op: Linear) -> None:
    engine, asked = engine_with(op)
    limits = engine.scheduler.limits
    times = {case.ask: case.times for case in cases_of(engine.runner, engine.ledger, limits, set(asked))}
    order = [key_of(line) for line in tuned(engine, asked, Bench(op)) if f": {KIND} " in line]
    costs = [times[KIND, key] * key[0] for key in order]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) > 2


def key_of(line: str) -> tuple[int, ...]:
    return tuple(map(int, line.split()[5].split("x")))


def test_when_the_time_is_over_the_next_start_goes_on(op: Linear) -> None:
    op.best = 3
    engine, asked = engine_with(op)
    lines = tuned(engine, asked, Bench(op, most=len(asked) + 4))
    assert "are left for the next start" in lines[-1]
    done = read_table(found_path("cpu"))[KIND]
    assert 0 < len(done) < len(asked)
    forget()
    tuned(engine, asked, Bench(op))
    assert len(read_table(found_path("cpu"))[KIND]) == len(asked)


def test_a_configuration_that_is_wrong_is_never_chosen(op: Linear) -> None:
    op.best = op.wrong = 3
    engine, asked = engine_with(op)
    lines = tuned(engine, asked, Bench(op))
    assert all("1 failed" in line for line in lines[1:-1])
    assert all(config == {"N": 1} for config in read_table(found_path("cpu"))[KIND].values())


def test_a_folder_that_cannot_be_written_costs_one_warning(op: Linear, caplog: pytest.LogCaptureFixture) -> None:
    op.best = 3
    tuning.CACHE.write_text("no folder")
    engine, asked = engine_with(op)
    tuned(engine, asked, Bench(op))
    assert len(caplog.records) == 1
    assert [op.kind.config(engine.runner.device, *key) for _, key in asked] == [{"N": 3}] * len(asked)


def test_an_error_ends_tuning_and_not_the_start(op: Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, asked = engine_with(op)

    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "launch", fails)
        lines = tuned(engine, asked, Bench(op))
    assert lines[-1] == "tuning: ended by RuntimeError: no memory"
    assert not found_path("cpu").exists()
    assert engine.runner.kernels.linear is op
    run(engine, ask("a", prompt_of(9)))


def test_who_dies_of_a_configuration_does_not_try_it_again(op: Linear) -> None:
    engine, asked = engine_with(op)

    class Deadly(Bench):
        def compile(self, *_: object) -> None:
            raise KeyboardInterrupt  # as a process that the device has ended: nothing catches it

    with pytest.raises(KeyboardInterrupt):
        tuned(engine, asked, Deadly(op))
    table = read_table(found_path("cpu"))[KIND]
    assert list(table.values()) == [{"N": 1}]
    forget()
    lines = tuned(engine, asked, Bench(op))
    assert not any(f"{KIND} {next(iter(table))} " in line for line in lines)


@pytest.mark.parametrize("name", ["granite", "qwen3_5", "gemma3", "lfm2"])
def test_nothing_is_left_behind(name: str, op: Linear) -> None:
    engine, asked = engine_with(op, name)
    free = engine.ledger.slabs.free
    before = run(engine, request := ask("a", prompt_of(40)))
    tuned(engine, asked, Bench(op))
    assert engine.ledger.slabs.free == free
    assert engine.runner.kernels.linear is op
    engine.check()
    assert run(engine, request)["a", 0].tokens == before["a", 0].tokens


def test_rows_own_memory_that_no_other_row_has_and_nothing_afterwards() -> None:
    engine = tiny_engine("braid", padding=1)
    rows = OwnRows(engine.runner, engine.ledger)
    with rows.rows(3, 50, 1) as own:
        for group in engine.ledger.groups:
            units = [unit for row in own for unit in row.sequence.state.owned()[group.id]]
            assert len(units) == len(set(units))
            assert units
            assert not set(units) & set(engine.ledger.reserved[group.id])
        assert [(row.start, row.count, row.sequence.row) for row in own] == [(50, 1, i) for i in range(3)]
        assert len({row.sequence.request.prompt for row in own}) == 3
        engine.ledger.check(row.sequence.state.owned() for row in own)
    engine.ledger.check()


def test_rows_have_as_long_a_history_as_memory_holds() -> None:
    engine = tiny_engine("gemma3", padding=1, slabs=16)
    rows = OwnRows(engine.runner, engine.ledger)
    with rows.rows(1, 80, 1) as own:
        assert 0 < own[0].start < 80
    with rows.rows(200, 0, 1) as own:
        assert own == []
    engine.ledger.check()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_configuration_may_turn_it_off(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def noted(*args: object) -> int:
        calls.append(args)
        return 0

    monkeypatch.setattr("plait_engine.build.tune_on_gpu", noted)
    build_engine(EngineConfig(model=str(DEMO_FOLDER), device="cpu", memory_bytes=1 << 28, max_seqs=2, tune=wanted))
    assert len(calls) == wanted


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy warns where a GPU gives infinity
@pytest.mark.parametrize("name", ["lfm2", pytest.param("qwen3_5", marks=pytest.mark.slow)])
def test_real_kernels_agree_with_themselves_whatever_is_chosen(name: str, op: Linear, caplog: Any) -> None:
    """Under Triton's interpreter: each of a few configurations is taken to be faster than the one before."""
    if torch.cuda.is_available():
        pytest.skip("tests/gpu/test_tuning.py does this there")
    caplog.set_level(logging.DEBUG, "plait.tuning")
    engine = tiny_engine(name, rig=Rig(implementation="triton"), padding=1, max_seqs=2, max_model_len=40, budget=16)

    class Faster(Bench):
        def seconds_each(self, calls: Sequence[Callable[[], object]], worth_seconds: float) -> float:
            del worth_seconds
            calls[0]()
            self.tried.append(0.9 ** len(self.tried))
            return self.tried[-1]

    request = ask("a", prompt_of(20))
    with asking() as asked, pytest.MonkeyPatch.context() as patch:
        before = run(engine, request)
        patch.setattr("plait_kernels.tuning.search.candidates", lambda tunable, _: list(tunable.options[1:3]))
        lines: list[str] = []
        limits = SchedulerLimits(16, 2, 40)
        changed = tune(engine.runner, engine.ledger, limits, list(asked), lines.append, Faster(op))
    assert changed > 6
    assert not any("failed" in line for line in lines), caplog.text
    assert run(engine, request)["a", 0].tokens == before["a", 0].tokens
    assert {kernel for kernel, _ in asked} == set(read_table(found_path("cpu")))
