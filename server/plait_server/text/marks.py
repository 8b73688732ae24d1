"""Where in a chat prompt a checkpoint is worth keeping: positions that later prompts will share.

- the end of the system prompt, which other conversations begin with too;
- the *stable point*: just before the assistant opener. The next turn's rendering keeps everything up to there, whatever
  the template does to replies (it may drop reasoning, trim, or tokenize them otherwise).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from plait_server.text.chat_template import ChatTemplate, TemplateFailed
from plait_server.text.tokenizer import TextTokenizer

REMEMBERED = 256
"""Openers and system prompts whose tokens are kept: they come again and again."""


class ChatMarks:
    """Finds marks by rendering parts of the conversation and looking for their tokens in the prompt's."""

    def __init__(self, template: ChatTemplate, tokenizer: TextTokenizer) -> None:
        self._template = template
        self._tokens = lru_cache(REMEMBERED)(lambda text: tokenizer.encode(text, add_special_tokens=False))

    def of(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], text: str, ids: Sequence[int]
    ) -> tuple[int, ...]:
        """Positions in ``ids``, the tokens of ``text``, the conversation rendered with an opener for the reply."""
        marks = (self._system_end(messages, kwargs, text, ids), self._stable_point(messages, kwargs, text, ids))
        return tuple(sorted({mark for mark in marks if mark is not None and 0 < mark < len(ids)}))

    def _stable_point(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], text: str, ids: Sequence[int]
    ) -> int | None:
        closed = self._render(messages, kwargs)
        if closed is None or not text.startswith(closed):
            return None
        opener = self._tokens(text[len(closed) :])
        return len(ids) - len(opener) if list(ids[len(ids) - len(opener) :]) == opener else None

    def _system_end(
        self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], text: str, ids: Sequence[int]
    ) -> int | None:
        if len(messages) < 2 or messages[0].get("role") not in ("system", "developer"):
            return None
        system = self._render(messages[:1], kwargs)
        if not system or not text.startswith(system):
            return None
        tokens = self._tokens(system)
        start = next((at for at in (0, 1) if list(ids[at : at + len(tokens)]) == tokens), None)
        return None if start is None else start + len(tokens)  # A tokenizer may put a token of its own in front.

    def _render(self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]) -> str | None:
        try:
            return self._template.render(messages, add_generation_prompt=False, kwargs=kwargs)
        except TemplateFailed:
            return None
