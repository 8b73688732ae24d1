"""Random arrivals, aborts and limits on tiny pools: every step is checked, everything ends, the books are right."""

from hypothesis import given, settings
from hypothesis import strategies as st

from plait_engine.engine import CannotFit
from tests.engine.scheduler.fake import ATTENTION, HYBRID, FakeLoad, FakeRunner, fake_engine, request

ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.integers(1, 50),
            "max_tokens": st.integers(0, 30),
            "n": st.sampled_from([1, 1, 1, 2, 3]),
            "priority": st.sampled_from([0, 0, 0, 1, -1]),
            "wait": st.integers(0, 6),
            "abort": st.sampled_from([None, None, None, 0, 1, 2, 5, 9, 15]),
        }
    ),
    min_size=1,
    max_size=9,
)
ENGINES = st.fixed_dictionaries(
    {
        "groups": st.sampled_from([HYBRID, ATTENTION]),
        "slabs": st.integers(8, 30),
        "units_per_slab": st.sampled_from([1, 2, 3]),
        "budget": st.integers(4, 20),
        "max_seqs": st.integers(1, 4),
        "max_model_len": st.sampled_from([200, 40]),
        "overlap": st.booleans(),
        "ends": st.sampled_from([0.0, 0.1]),
    }
)


def play(arrivals: list[dict[str, int]], engine: dict[str, object], blocks: bool) -> FakeLoad:
    load = FakeLoad(fake_engine(**engine))  # type: ignore[arg-type]
    runner = load.engine.runner
    assert isinstance(runner, FakeRunner)
    runner.blocks = lambda sequence: blocks and bool(sequence.arrival % 2)
    due: dict[int, list[str]] = {}
    for i, arrival in enumerate(arrivals):
        for _ in range(arrival["wait"]):
            for id in due.pop(load.steps, []):
                load.abort(id)
            load.step()
        asked = request(f"r{i}", arrival["prompt"], arrival["max_tokens"], n=arrival["n"], priority=arrival["priority"])
        try:
            load.add(asked)
        except CannotFit:
            continue
        if arrival["abort"] is not None:
            due.setdefault(load.steps + arrival["abort"], []).append(asked.id)
    while due:
        for id in due.pop(load.steps, []):
            load.abort(id)
        load.step()
    load.finish()
    return load


@settings(max_examples=150, deadline=None)
@given(ARRIVALS, ENGINES, st.booleans())
def test_everything_ends_with_its_exact_tokens(
    arrivals: list[dict[str, int]], engine: dict[str, object], blocks: bool
) -> None:
    play(arrivals, engine, blocks)


@settings(max_examples=60, deadline=None)
@given(ARRIVALS, ENGINES, st.booleans())
def test_the_overlapped_loop_gives_what_the_plain_one_gives(
    arrivals: list[dict[str, int]], engine: dict[str, object], blocks: bool
) -> None:
    arrivals = [arrival | {"abort": None} for arrival in arrivals]
    plain, overlapped = (play(arrivals, engine | {"overlap": overlap}, blocks) for overlap in (False, True))
    assert plain.tokens == overlapped.tokens
    assert plain.finished == overlapped.finished
