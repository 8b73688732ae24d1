"""Stop strings, wherever the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait_server.text.stop import StopMatcher

LETTERS = st.text("abc", min_size=1, max_size=5)


def run(pieces: list[str], stops: list[str], *, include_stop: bool = False) -> tuple[list[str], str | None]:
    """What is sent for each piece, then what the end releases; and the stop string that ended it."""
    matcher = StopMatcher(stops, include_stop=include_stop)
    sent = []
    for piece in pieces:
        text, stop = matcher.push(piece)
        sent.append(text)
        if stop is not None:
            return sent, stop
    return [*sent, matcher.finish()], None


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """By definition: the shortest beginning of the text that ends in a stop string, and the longest such string."""
    for end in range(1, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            longest = max(ending, key=len)
            return end - len(longest), longest
    return None


def splits(text: str) -> st.SearchStrategy[list[str]]:
    cuts = st.lists(st.integers(0, len(text)), max_size=8).map(sorted)
    return cuts.map(lambda places: [text[a:b] for a, b in pairwise([0, *places, len(text)])])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_split_gives_what_the_definition_says(data: st.DataObject) -> None:
    text = data.draw(st.text("abcd", max_size=24))
    stops = data.draw(st.lists(LETTERS, min_size=1, max_size=4))
    pieces = data.draw(splits(text))
    sent, stop = run(pieces, stops)
    expected = first_match(text, stops)
    if expected is None:
        assert (stop, "".join(sent)) == (None, text)
    else:
        assert ("".join(sent), stop) == (text[: expected[0]], expected[1])


@pytest.mark.parametrize("length", range(2, 13))
def test_one_stop_string_of_any_length_at_every_offset_in_every_two_pieces(length: int) -> None:
    stop = "<stop marker>"[:length]
    for offset in range(6):
        text = "abcdef"[:offset] + stop + "tail"
        for cut in range(len(text) + 1):
            sent, found = run([text[:cut], text[cut:]], [stop])
            assert ("".join(sent), found) == (text[:offset], stop)


def test_nothing_of_a_stop_string_leaks_and_nothing_before_it_is_lost() -> None:
    sent, stop = run(list("one END two"), ["END"])
    assert (sent[:4], stop) == (["o", "n", "e", " "], "END")
    assert "".join(sent) == "one "


def test_of_two_stops_one_a_prefix_of_the_other_the_shorter_comes_first() -> None:
    assert run(["xxabc"], ["abc", "ab"]) == (["xx"], "ab")
    assert run(list("xxabc"), ["abc", "ab"])[1] == "ab"


def test_of_two_stops_that_end_together_the_longer_is_cut_off() -> None:
    for pieces in (["xxabc"], list("xxabc")):
        sent, stop = run(pieces, ["bc", "abc"])
        assert ("".join(sent), stop) == ("xx", "abc")


def test_a_partial_match_is_held_back_and_released_when_it_fails() -> None:
    sent, stop = run(["go ST", "AR", "T"], ["STOP"])
    assert (sent, stop) == (["go ", "STAR", "T", ""], None)


def test_a_partial_match_at_the_end_is_released() -> None:
    assert run(["go STO"], ["STOP"]) == (["go ", "STO"], None)


def test_the_stop_string_can_be_part_of_the_text() -> None:
    for pieces in (["go STOP on"], list("go STOP on")):
        sent, stop = run(pieces, ["STOP"], include_stop=True)
        assert ("".join(sent), stop) == ("go STOP", "STOP")


def test_without_stop_strings_text_passes_at_once() -> None:
    assert run(["a", "", "b"], []) == (["a", "", "b", ""], None)
