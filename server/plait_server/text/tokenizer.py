"""Text to token ids and back, from a model folder's ``tokenizer.json``. No transformers: it takes seconds to import."""

import asyncio
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from plait_server.text.detokenizer import ByteDetokenizer, Detokenizer, Spelling, WindowDetokenizer

INLINE_CHARS = 1_024
"""Up to here (about a millisecond) tokenizing on the event loop is cheaper than a thread and stops nobody."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def printable_bytes() -> dict[str, int]:
    """The alphabet in which byte-level tokenizers write bytes (GPT-2): printable ones as they are, the rest shifted."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(shifted)}


ALPHABET = printable_bytes()


class TextTokenizer:
    """A tokenizer and what the server derives from it once. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # A tokenizer.json may carry its training's truncation and padding; a server must send what it was given.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token.content: token_id for token_id, token in added.items()}
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.longest_token_chars = max(map(len, vocab), default=1)
        self.byte_level = is_byte_level(tokenizer)
        to_bytes = byte_level_bytes if self.byte_level else word_bytes
        self._spelling = Spelling.of(to_bytes(self.token(token_id)) for token_id in range(self.vocab_size))
        self._seen = lru_cache(8)(lambda shown: self._spelling.hiding(self.special_ids - shown))

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer":
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: the model folder needs a tokenizer in that format")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # The library raises no narrower one.
            raise ValueError(f"{path} is not a tokenizer that can be read: {error}") from error

    def as_json(self) -> str:
        """As in tokenizer.json."""
        return self._tokenizer.to_str()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # encode_batch_fast, unlike encode, leaves the interpreter to other threads while it works.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    async def encode_soon(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Like ``encode``, without stopping the event loop for a long text."""
        if len(text) <= INLINE_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: self.encode(text, add_special_tokens=add_special_tokens)
        )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """The vocabulary's own spelling, as in tokenizer.json."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token stands for; half a character is possible. Ids without a token have none."""
        return self._spelling.raw[token_id] if token_id < self.vocab_size else b""

    def added_id(self, text: str) -> int | None:
        """Of a token beside the vocabulary proper, like a mark that templates use."""
        return self._added.get(text)

    def in_grammar(self, mark: str) -> str:
        """How a grammar in Lark names a mark: by its token if it has one of its own, else by its text."""
        token_id = self.added_id(mark)
        return json.dumps(mark) if token_id is None else f"<[{token_id}]>"

    def detokenizer(
        self,
        context: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """``context``: the prompt, whose last tokens may decide how the first new one reads.

        ``shown``: special tokens that are not skipped in any case.
        """
        if self.byte_level:
            return ByteDetokenizer(self._seen(shown) if skip_special_tokens else self._spelling, context)
        hidden = self.special_ids - shown if skip_special_tokens else frozenset()
        return WindowDetokenizer(self._tokenizer, context, hidden=hidden)


def is_byte_level(tokenizer: Tokenizer) -> bool:
    if tokenizer.decoder is None:
        return False
    decoder = json.loads(tokenizer.decoder.__getstate__())  # as in tokenizer.json, without writing all of that
    parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    return [part.get("type") for part in parts] == ["ByteLevel"]


def byte_level_bytes(token: str) -> bytes:
    """As the library's ByteLevel decoder: a token with any character outside the alphabet stands for itself."""
    try:
        return bytes(map(ALPHABET.__getitem__, token))
    except KeyError:
        return token.encode()


def word_bytes(token: str) -> bytes:
    """In the spelling of SentencePiece, where single bytes have tokens of their own."""
    if match := BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()
