"""Offline use: answers in order, and nothing left behind when something goes wrong."""

from collections.abc import Iterator

import pytest

from plait_engine.config import LoadFormat
from plait_engine.engine import CannotFit
from plait_engine.llm import LLM
from plait_engine.request import FinishReason, SamplingParams
from tests.engine.tiny import books, prompt_of, write_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = write_folder(tmp_path_factory.mktemp("model"), "granite")
    return LLM(str(folder), load_format=LoadFormat.RANDOM, memory_bytes=1 << 26, max_batch_tokens=32, max_seqs=4)


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    yield shared
    assert shared.engine.idle
    books(shared.engine)


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [prompt_of(n) for n in (40, 3, 17, 1)]
    together = llm.generate(prompts, GREEDY)
    alone = [llm.generate([prompt], GREEDY)[0] for prompt in prompts]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert all(c.finish_reason is FinishReason.LENGTH and len(c.token_ids) == 5 for c in together)


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True, logprobs=2) for n in (1, 4)]
    completions = llm.generate([prompt_of(3)] * 2, params)
    assert [len(c.token_ids) for c in completions] == [len(c.logprobs) for c in completions] == [1, 4]
    with pytest.raises(ValueError, match="zip"):
        llm.generate([prompt_of(3)] * 3, params)


def test_a_prompt_that_cannot_be_served_ends_the_call_and_leaves_nothing(llm: LLM) -> None:
    for bad in (prompt_of(300), (3, 10_000), ()):
        with pytest.raises(CannotFit):
            llm.generate([prompt_of(3), bad, prompt_of(4)], GREEDY)
        assert llm.engine.idle
    assert len(llm.generate([prompt_of(3)], GREEDY)[0].token_ids) == 5


def test_an_interrupted_call_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([False, False, True])
    step = llm.engine.step

    def interrupted():  # type: ignore[no-untyped-def]
        if next(steps):
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([prompt_of(9), prompt_of(5)], GREEDY)
    monkeypatch.undo()
    assert llm.engine.idle
    assert len(llm.generate([prompt_of(3)], GREEDY)[0].token_ids) == 5
