"""The tokenizer of a model folder."""

import asyncio
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from plait_server.text.tokenizer import INLINE_CHARS, TextTokenizer
from tests.server.tiny_text import byte_level_tokenizer


def test_special_tokens_are_added_only_where_the_tokenizer_says_so_and_the_caller_wants_it() -> None:
    inner = byte_level_tokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", inner.token_to_id("<|start|>"))]
    )
    tokenizer = TextTokenizer(inner)
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello", add_special_tokens=True) == [inner.token_to_id("<|start|>"), *plain]
    assert tokenizer.encode("", add_special_tokens=True) == [inner.token_to_id("<|start|>")]


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    inner = byte_level_tokenizer()
    inner.enable_truncation(max_length=4)
    inner.enable_padding(length=8)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a rather long text", add_special_tokens=False)) == "a rather long text"


async def test_long_and_short_texts_give_the_same_ids_and_a_long_one_leaves_the_loop_free(
    tokenizer: TextTokenizer,
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    counter = asyncio.create_task(count())
    for text in ("short", "x y " * INLINE_CHARS, "The quick brown fox. " * 20_000):
        ids = await tokenizer.encode_soon(text, add_special_tokens=False)
        assert ids == tokenizer.encode(text, add_special_tokens=False)
    counter.cancel()
    assert turns > 10


def test_bytes_of_tokens_add_up_to_the_text(tokenizer: TextTokenizer) -> None:
    text = "Füße 日本 🙂"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_bytes(10**6) == b""


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is missing"):
        TextTokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ['{"version"', "[]", "{}"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer that can be read"):
        TextTokenizer.load(tmp_path)


def test_byte_level_is_recognized_inside_a_sequence_of_one() -> None:
    written = json.loads(byte_level_tokenizer().to_str())
    written["decoder"] = {"type": "Sequence", "decoders": [written["decoder"]]}
    assert TextTokenizer(Tokenizer.from_str(json.dumps(written))).byte_level
