"""Text as its tokens come, one at a time, such that the pieces add up to the text of all of them."""

import codecs
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple, Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 6
"""Tokens of the prompt a decoder gets to see: enough to know that a word goes on, or a character."""
MAX_HELD_TOKENS = 16
"""An incomplete character has at most four bytes; a longer run without text is no character at all."""


class Detokenizer(Protocol):
    """One per sequence. Characters are never split: what is incomplete waits for its other bytes, or for the end."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str:
        """What was still held back; afterwards nothing more may be pushed."""


class Spelling(NamedTuple):
    """What each token of a vocabulary adds to a text."""

    raw: tuple[bytes, ...]
    text: tuple[str | None, ...]
    """The same where it is whole characters, which most tokens are; else None."""

    @classmethod
    def of(cls, raw: Iterable[bytes]) -> "Spelling":
        raw = tuple(raw)
        return cls(raw, tuple(map(whole_text, raw)))

    def hiding(self, token_ids: Container[int]) -> "Spelling":
        """Those add nothing."""
        return Spelling(
            tuple(b"" if token_id in token_ids else raw for token_id, raw in enumerate(self.raw)),
            tuple("" if token_id in token_ids else text for token_id, text in enumerate(self.text)),
        )


def whole_text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


class ByteDetokenizer:
    """For byte-level tokenizers, where the text is exactly the UTF-8 of the tokens' bytes, one after the other."""

    __slots__ = ("_decoder", "_held", "_spelling", "_texts")

    def __init__(self, spelling: Spelling, context: Sequence[int] = ()) -> None:
        self._spelling = spelling
        self._texts = spelling.text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = False
        """The decoder has seen the beginning of a character."""
        for token_id in context[-CONTEXT_TOKENS:]:
            self.push(token_id)  # only bytes of a character that the prompt left incomplete stay behind

    def push(self, token_id: int) -> str:
        if token_id >= len(self._texts):
            return ""  # A model's vocabulary may be padded beyond the tokenizer's.
        text = self._texts[token_id]
        if text is None or self._held:
            text = self._decoder.decode(self._spelling.raw[token_id])
            self._held = self._decoder.getstate()[0] != b""
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class WindowDetokenizer:
    """For every other tokenizer: decode a short window with and without the new tokens; the difference is new text."""

    def __init__(
        self, tokenizer: Tokenizer, context: Sequence[int] = (), *, hidden: frozenset[int] = frozenset()
    ) -> None:
        """``hidden``: tokens that leave no text."""
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._window = [token_id for token_id in context[-CONTEXT_TOKENS:] if token_id not in hidden]
        self._read = len(self._window)
        """Tokens of the window whose text has been given out."""

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._window.append(token_id)
        before, after = self._texts()
        too_long = len(self._window) - self._read >= MAX_HELD_TOKENS
        if len(after) <= len(before):
            if too_long:
                del self._window[self._read :]  # special tokens only: they must not make every later step dearer
            return ""
        if after.endswith(REPLACEMENT) and not too_long:
            return ""
        del self._window[: self._read]
        self._read = len(self._window)
        return after[len(before) :]

    def finish(self) -> str:
        before, after = self._texts()
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        before = self._tokenizer.decode(self._window[: self._read], skip_special_tokens=False)
        return before, self._tokenizer.decode(self._window, skip_special_tokens=False)
