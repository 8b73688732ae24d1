"""Steps before the first request touch nothing that a request could ever see."""

import pytest

from plait_engine.runner.warm_up import warm_up
from tests.engine.tiny import KINDS, ask, prompt_of, run, seeded, tiny_engine


@pytest.mark.parametrize("name", [*KINDS, "braid"])
def test_warming_up_writes_reserved_units_only(name: str) -> None:
    engine = tiny_engine(name)
    arena, ledger = engine.ledger.arena, engine.ledger
    before = arena.bytes.clone()
    told: list[str] = []
    warm_up(engine.runner, ledger.reserved, engine.scheduler.limits, told.append)
    after = arena.bytes.clone()
    for group, units in ledger.reserved.items():
        size = ledger.groups[group].unit_bytes
        for unit in units:
            after[unit * 256 : unit * 256 + size] = before[unit * 256 : unit * 256 + size]
    assert bool((after == before).all())
    assert len(told) == 2
    engine.check()


def test_answers_after_warming_up_are_those_of_a_cold_engine() -> None:
    requests = [ask(str(n), prompt_of(n), seeded(6, seed=n)) for n in (1, 5, 17)]
    warmed = tiny_engine("braid")
    warm_up(warmed.runner, warmed.ledger.reserved, warmed.scheduler.limits, lambda _: None)
    cold = run(tiny_engine("braid"), *requests)
    for key, answer in run(warmed, *requests).items():
        assert answer.tokens == cold[key].tokens
