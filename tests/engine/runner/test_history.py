"""What penalties are told of a sequence is what counting its tokens anew would give."""

from hypothesis import given
from hypothesis import strategies as st

from plait_engine.request import Request, SamplingParams
from plait_engine.runner.history import History
from plait_engine.sequence import Sequence


@given(st.lists(st.integers(0, 150), min_size=1, max_size=200), st.lists(st.lists(st.integers(0, 150)), max_size=8))
def test_history_counts_what_was_generated_and_knows_all_tokens(prompt: list[int], pieces: list[list[int]]) -> None:
    sequence = Sequence(Request(id="", prompt=tuple(prompt), sampling=SamplingParams()), 0, 0, None)  # type: ignore[arg-type]
    history = History()
    for piece in ([], *pieces):
        sequence.tokens.extend(piece)
        history.follow(sequence)
        generated = sequence.tokens[len(prompt) :]
        assert sorted(history.tokens.tolist()) == sorted(set(sequence.tokens))
        counts = dict(zip(history.tokens.tolist(), history.counts.tolist(), strict=True))
        assert counts == {token: generated.count(token) for token in set(sequence.tokens)}
