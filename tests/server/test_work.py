"""Deltas become pieces by a call, and whatever goes wrong on the way ends one request and no other."""

import asyncio

import pytest

from plait_engine.client import EngineError, RequestRefused
from plait_engine.request import FinishReason, SamplingParams
from plait_server.generation import Generation, Job
from plait_server.metrics import Metrics
from plait_server.sequence_text import Piece
from plait_server.text.tokenizer import TextTokenizer
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import eventually


class Heard:
    """A ``Listener`` that keeps what it is told, and fails at a step when it is asked to."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.steps: list[list[Piece]] = []
        self.over = asyncio.Event()
        self.error: Exception | None = None
        self._fails_at = fails_at

    def pieces(self, pieces: list[Piece]) -> None:
        assert not self.over.is_set()
        if len(self.steps) == self._fails_at:
            raise ValueError("cannot be written")
        self.steps.append(pieces)

    def ended(self, error: Exception | None) -> None:
        assert not self.over.is_set()
        self.error = error
        self.over.set()


def generation(engine: FakeEngine, tokenizer: TextTokenizer, prompts: int = 1, n: int = 1) -> Generation:
    job = Job(prompts=tuple((50 + i,) for i in range(prompts)), sampling=SamplingParams(max_tokens=6), n=n)
    return Generation(job=job, engine=engine, tokenizer=tokenizer, metrics=Metrics())


async def listen(work: Generation, heard: Heard) -> Heard:
    with work.working(heard):
        await heard.over.wait()
    return heard


@pytest.mark.parametrize(("prompts", "n"), [(1, 1), (1, 3), (3, 2)])
async def test_every_choice_is_heard_to_its_end(
    engine: FakeEngine, tokenizer: TextTokenizer, prompts: int, n: int
) -> None:
    heard = await listen(generation(engine, tokenizer, prompts, n), Heard())
    assert heard.error is None
    last = {piece.choice: piece.finish_reason for step in heard.steps for piece in step}
    assert last == dict.fromkeys(range(prompts * n), "length")
    assert engine.aborted == []


async def test_a_listener_that_fails_ends_its_own_request_only(engine: FakeEngine, tokenizer: TextTokenizer) -> None:
    engine.step_seconds = 0.001
    work = generation(engine, tokenizer)
    bad, good = await asyncio.gather(
        listen(work, Heard(fails_at=2)), listen(generation(engine, tokenizer, n=2), Heard())
    )
    assert isinstance(bad.error, ValueError)
    assert good.error is None
    assert engine.aborted == [(work.parts[0].request.id, None)]
    assert engine.sequences_running == 0


async def test_leaving_early_ends_the_work_and_nothing_more_is_heard(
    engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    engine.ignores_aborts = True
    engine.step_seconds = 0.001
    work, heard = generation(engine, tokenizer, prompts=2), Heard()
    with work.working(heard):
        await eventually(lambda: bool(heard.steps))
    known = len(heard.steps)
    assert sorted(engine.aborted) == sorted((part.request.id, None) for part in work.parts)
    await eventually(lambda: not engine.sequences_running)
    assert len(heard.steps) == known
    assert not heard.over.is_set()


async def test_a_refusal_is_heard_once_whatever_the_number_of_prompts(
    engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    engine.refusal = "too long"
    heard = await listen(generation(engine, tokenizer, prompts=3), Heard())
    assert isinstance(heard.error, RequestRefused)
    assert heard.steps == []


async def test_an_engine_that_ends_a_request_without_a_reason_is_an_error(
    engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    engine.step_seconds = 0.001
    work, heard = generation(engine, tokenizer), Heard()
    with work.working(heard):
        await eventually(lambda: bool(heard.steps))
        engine.running.clear()
        await heard.over.wait()
    assert isinstance(heard.error, EngineError)
    assert "before it was complete" in str(heard.error)
    assert all(piece.finish_reason != FinishReason.STOP for step in heard.steps for piece in step)
