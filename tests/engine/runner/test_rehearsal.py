"""No request waits for a compiler: what random loads launch was asked for before, by the rehearsal."""

import pytest

from plait_engine.runner.padding_rows import PaddingRows
from plait_engine.runner.rehearsal import rehearse
from plait_engine.scheduler.step_plan import StepPlan
from tests.engine.tiny import tiny_engine
from tests.kernels.uninterpreted import output_of


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "piece_tokens", "seed", "words"),
    [
        ("granite", 0, 1, ()),
        ("gemma3", 256, 3, ("hopper",)),
        pytest.param("qwen3_5", 0, 4, ("hopper",), marks=pytest.mark.slow),
        *(
            pytest.param(name, pieces, seed, (), marks=pytest.mark.slow)
            for seed, name in enumerate(("granite", "granite_moe", "qwen3_5", "qwen3_5_moe", "gemma3", "lfm2"), 10)
            for pieces in (0, 256)
        ),
    ],
)
def test_random_loads_ask_for_no_kernel_that_was_not_rehearsed(
    name: str, piece_tokens: int, seed: int, words: tuple[str, ...]
) -> None:
    rehearsed, others = asked(name, str(piece_tokens), str(seed), *words)
    assert rehearsed > 10
    assert not others, "\n".join(others)


@pytest.mark.timeout(900)
def test_without_a_rehearsal_such_loads_ask_for_many() -> None:
    """CONTROL"""
    rehearsed, others = asked("lfm2", "0", "2", "unrehearsed")
    assert rehearsed < 5
    assert len(others) > 20


@pytest.mark.timeout(900)
def test_without_a_rehearsal_such_loads_ask_for_both_attentions_of_prompts() -> None:
    """CONTROL"""
    _, others = asked("gemma3", "256", "3", "hopper", "unrehearsed")
    prompts = {(kernel.partition(" ")[0], "'WINDOWED': ('constexpr', True)" in kernel) for kernel in others}
    assert prompts >= {("prefill", True), ("prefill", False), ("_prefill", True), ("_prefill", False)}


@pytest.mark.parametrize(("budget", "most"), [(64, 20), (24, 12)])
def test_a_rehearsal_goes_through_as_many_pieces_as_there_may_be(budget: int, most: int) -> None:
    """Of forced tokens, which every running sequence may have."""
    engine = tiny_engine("gemma3", budget=budget, max_seqs=20)
    pieces, launch = [], engine.runner.launch

    def watched(plan: StepPlan) -> object:
        pieces.append(sum(row.count > 1 for row in plan.rows))
        return launch(plan)

    engine.runner.launch = watched  # type: ignore[method-assign,assignment]
    rehearse(engine.runner, PaddingRows(engine.runner, engine.ledger.reserved), engine.scheduler.limits)
    assert max(pieces) == most


def asked(*arguments: str) -> tuple[int, list[str]]:
    """How many kernels were rehearsed, and those that were not."""
    rehearsed, *others = output_of("tests.engine.runner.asked_kernels", *arguments).splitlines()
    return int(rehearsed.split()[0]), others
