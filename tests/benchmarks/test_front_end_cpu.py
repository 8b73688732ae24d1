"""The front end's benchmark: that it counts what it says, and that a lost or late token would show."""

from collections.abc import Iterator

import pytest
import uvloop

from benchmarks.front_end_cpu import cost, load
from benchmarks.front_end_cpu.load import STEP_OF, due, in_order
from benchmarks.front_end_cpu.reading import read
from benchmarks.front_end_cpu.servers import ServerProcess, bare, plait

TEXTS = list(STEP_OF)
PACE = 0.02


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(plait, PACE) as process:
        yield process


def test_texts_tell_steps_apart() -> None:
    assert len(TEXTS) > 200
    assert [STEP_OF[text] for text in TEXTS] == list(range(len(TEXTS)))


def test_a_token_that_is_missing_twice_there_or_at_the_wrong_place_is_noticed() -> None:
    whole = [*TEXTS[-3:], *TEXTS[:3]]
    assert in_order(whole, 6)
    assert not in_order(whole, 7)
    assert not in_order([*whole[:2], *whole[3:]], 5)
    assert not in_order([*whole[:2], *whole[1:]], 7)
    assert not in_order([whole[1], whole[0], *whole[2:]], 6)
    assert not in_order([*whole[:2], "?!", *whole[3:]], 6)


def test_lateness_counts_from_when_the_step_was_due() -> None:
    step = 7 * len(TEXTS) + 5
    for seconds in (0.001, PACE, 3.5):
        at = step * PACE + seconds
        assert at - due(at, TEXTS[5], PACE) == pytest.approx(seconds)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_every_token_of_every_stream_is_read(server: ServerProcess, path: str) -> None:
    readings = uvloop.run(read(server.port, path, 5, 12))
    arrived = [list(reading.tokens()) for reading in readings]
    assert all(in_order([text for _, text in stream], 12) for stream in arrived)
    late = load.steady_lateness(arrived, PACE)
    assert late
    assert min(late) > 0
    assert cost.event_bytes(server, path) > 150


def test_the_bare_loop_makes_as_many_writes_of_the_size_it_is_asked_for() -> None:
    with ServerProcess(bare, PACE) as constant:
        (reading,) = uvloop.run(read(constant.port, "/123", 1, 12))
    assert reading.body.count(b"x" * 123) == 12
    assert reading.body.count(b"x") == 12 * 123
    assert len(reading.arrivals) >= 12
