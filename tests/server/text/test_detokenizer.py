"""Incremental text adds up to the text of all tokens, and never splits a character."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from plait_server.text.detokenizer import MAX_HELD_TOKENS, Detokenizer, WindowDetokenizer
from plait_server.text.tokenizer import TextTokenizer

IDS = st.lists(st.integers(0, 511), max_size=40)


def stream(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


def id_of(tokenizer: TextTokenizer, token: str) -> int:
    token_id = tokenizer._tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


@pytest.fixture(scope="module")
def fallback() -> TextTokenizer:
    """As SentencePiece models are converted: ``▁`` for spaces, single bytes for what has no token."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁go", "▁on", "a", "b", "é", "▁▁", "日"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<end>"])
    return TextTokenizer(tokenizer)


@settings(max_examples=300, deadline=None)
@given(ids=IDS, skip=st.booleans())
def test_streamed_byte_level_text_is_the_full_decode_whatever_the_tokens(
    tokenizer: TextTokenizer, ids: list[int], skip: bool
) -> None:
    """Also for bytes that are no UTF-8 at all."""
    pieces = stream(tokenizer.detokenizer(skip_special_tokens=skip), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_streamed_text_of_any_string_has_no_replacement_characters(tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert stream(tokenizer.detokenizer(), ids)[-1] == ""
    pieces = stream(tokenizer.detokenizer(skip_special_tokens=False), ids)
    assert "".join(pieces) == text


def test_a_character_of_four_tokens_comes_with_the_last_of_them(tokenizer: TextTokenizer) -> None:
    ids = [i for byte in "🦄".encode() for i in range(512) if tokenizer.token_bytes(i) == bytes([byte])]
    assert stream(tokenizer.detokenizer(), ids) == ["", "", "", "🦄", ""]


def test_an_incomplete_character_is_released_at_the_end(tokenizer: TextTokenizer) -> None:
    ids = [i for byte in "🦄".encode()[:2] for i in range(512) if tokenizer.token_bytes(i) == bytes([byte])]
    assert stream(tokenizer.detokenizer(), ids) == ["", "", "\ufffd"]


def test_a_character_that_the_prompt_began_is_completed(tokenizer: TextTokenizer) -> None:
    ids = [i for byte in "🦄".encode() for i in range(512) if tokenizer.token_bytes(i) == bytes([byte])]
    assert stream(tokenizer.detokenizer(ids[:2]), ids[2:]) == ["", "🦄", ""]
    assert stream(tokenizer.detokenizer(ids), ids) == ["", "", "", "🦄", ""]


def test_special_tokens_are_skipped_unless_wanted(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("a<|end|>b", add_special_tokens=False)
    assert "".join(stream(tokenizer.detokenizer(), ids)) == "ab"
    assert "".join(stream(tokenizer.detokenizer(skip_special_tokens=False), ids)) == "a<|end|>b"


@settings(max_examples=200, deadline=None)
@given(text=st.text("ab é日🙂", max_size=20))
def test_window_text_of_valid_tokens_is_the_full_decode(fallback: TextTokenizer, text: str) -> None:
    ids = [id_of(fallback, "▁go")]
    for character in text:
        known = fallback._tokenizer.token_to_id(character.replace(" ", "▁"))
        ids += [known] if known is not None else [1 + byte for byte in character.encode()]
    pieces = stream(fallback.detokenizer(), ids)
    assert isinstance(fallback.detokenizer(), WindowDetokenizer)
    assert "".join(pieces) == fallback.decode(ids, skip_special_tokens=True)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_window_keeps_the_space_of_the_first_word_after_a_prompt(fallback: TextTokenizer) -> None:
    go, on = (id_of(fallback, word) for word in ("▁go", "▁on"))
    assert stream(fallback.detokenizer([go]), [on]) == [" on", ""]
    assert stream(fallback.detokenizer(), [go, on]) == ["go", " on", ""]


def test_a_window_does_not_hold_a_run_of_invalid_bytes_for_ever(fallback: TextTokenizer) -> None:
    detokenizer = fallback.detokenizer()
    pieces = stream(detokenizer, [1 + 0xFF] * (3 * MAX_HELD_TOKENS))
    assert pieces[MAX_HELD_TOKENS - 1]
    assert set("".join(pieces)) == {"\ufffd"}


def test_a_window_does_not_grow_with_skipped_special_tokens(fallback: TextTokenizer) -> None:
    end = id_of(fallback, "<end>")
    detokenizer = fallback.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    assert set(stream(detokenizer, [end] * 200)) == {""}
    assert len(detokenizer._window) <= 2 * MAX_HELD_TOKENS
    assert "".join(stream(detokenizer, [end, *[id_of(fallback, "a")] * 2])) == "aa"


def test_the_standard_decoder_replaces_invalid_bytes_as_the_library_does(tokenizer: TextTokenizer) -> None:
    """What ``ByteDetokenizer`` rests on: both follow Unicode's practice of one mark per maximal bad part."""
    for raw in (b"\xf0\x9f", b"\xf0\x9fa", b"\xff\xfe", b"\xe2\x82\xe2\x82\xac", b"\xc0\x80", b"\xed\xa0\x80"):
        ids = [i for byte in raw for i in range(512) if tokenizer.token_bytes(i) == bytes([byte])]
        assert codecs.decode(raw, "utf-8", "replace") == tokenizer.decode(ids)
