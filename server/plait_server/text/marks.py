"""Where in a chat prompt a checkpoint is worth keeping: positions that later prompts will share.

- the end of what other conversations begin with too: the system prompt, the tools;
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
PROBE = "\ue000probe\ue000"
"""Stands for what is not known yet, or is other in each conversation."""
LEAST_BEGINNING = 32
"""Tokens: what a template puts in front of every conversation by itself is worth a checkpoint from here on."""

Messages = Sequence[Mapping[str, Any]]
Kwargs = Mapping[str, Any]


class ChatMarks:
    """Finds marks by rendering parts of the conversation and looking for their tokens in the prompt's."""

    def __init__(self, template: ChatTemplate, tokenizer: TextTokenizer) -> None:
        self._template = template
        self._tokens = lru_cache(REMEMBERED)(lambda text: tokenizer.encode(text, add_special_tokens=False))

    def of(self, messages: Messages, kwargs: Kwargs, text: str, ids: Sequence[int]) -> tuple[int, ...]:
        """Positions in ``ids``, the tokens of ``text``, the conversation rendered with an opener for the reply."""
        marks = (self._beginning(messages, kwargs, ids), self._stable_point(messages, kwargs, text, ids))
        return tuple(sorted({mark for mark in marks if mark is not None and 0 < mark < len(ids)}))

    def _stable_point(self, messages: Messages, kwargs: Kwargs, text: str, ids: Sequence[int]) -> int | None:
        closed = self._render(messages, kwargs)
        later = self._render([*messages, _said("assistant"), _said("user")], kwargs)
        kept = len(text) if later is None else _common(text, later)
        if closed is not None and text.startswith(closed) and len(closed) <= kept:
            return self._position(text, len(closed), ids)
        if later is None:
            return None
        # Not a border of turns: the last token may be another one when other text follows.
        position = self._position(text, kept, ids)
        return None if position is None else position - 1

    def _position(self, text: str, chars: int, ids: Sequence[int]) -> int | None:
        """Tokens up to there, known from the tokens of the rest, which is short and comes again and again."""
        rest = self._tokens(text[chars:])
        return len(ids) - len(rest) if list(ids[len(ids) - len(rest) :]) == rest else None

    def _beginning(self, messages: Messages, kwargs: Kwargs, ids: Sequence[int]) -> int | None:
        """Up to where the text of the first message begins that is other in each conversation."""
        known = 1 if messages[0].get("role") in ("system", "developer") else 0
        if known == len(messages):
            return None
        rendered = self._render([*messages[:known], _said(str(messages[known].get("role")))], kwargs)
        beginning, probe, _ = (rendered or "").partition(PROBE)
        if not probe:
            return None
        tokens = self._tokens(beginning)
        if not known and not kwargs.get("tools") and len(tokens) < LEAST_BEGINNING:
            return None
        # A tokenizer may put a token of its own in front; and the last token here may be another one there.
        same = max(_common(tokens, ids[front : front + len(tokens)]) + front for front in (0, 1))
        return same if same >= len(tokens) - 1 else None

    def _render(self, messages: Messages, kwargs: Kwargs) -> str | None:
        try:
            return self._template.render(messages, add_generation_prompt=False, kwargs=kwargs)
        except TemplateFailed:
            return None


def _said(role: str) -> dict[str, Any]:
    return {"role": role, "content": PROBE}


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """In how many first elements two sequences agree: by bisection, so that the comparing is done in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
