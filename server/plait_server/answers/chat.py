"""Answers of /v1/chat/completions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from plait_server import logprobs
from plait_server.answers.collected import Choice
from plait_server.answers.explanation import NOTHING, explanation
from plait_server.answers.head import DONE, END, Head
from plait_server.generation import Generation
from plait_server.sequence_text import Piece


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """What the client wants to see."""

    logprobs: bool = False
    prompt_logprobs: bool = False
    token_ids: bool = False
    explain_cache: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


def answer(generation: Generation, head: Head, choices: list[Choice], options: ChatOptions) -> dict[str, Any]:
    """The whole document of an answer that is not streamed."""
    fields: dict[str, Any] = {
        **head.fields("chat.completion"),
        "choices": [choice_fields(generation, choice, options) for choice in choices],
        "usage": generation.usage(),
    }
    if options.explain_cache:
        fields |= explanation(generation)
    part = generation.parts[0]
    if options.prompt_logprobs and part.prompt_logprobs is not None:
        fields["prompt_logprobs"] = logprobs.prompt_logprobs(generation.tokenizer, part.prompt_logprobs)
    if options.token_ids:
        fields["prompt_token_ids"] = part.request.prompt
    return fields


def choice_fields(generation: Generation, choice: Choice, options: ChatOptions) -> dict[str, Any]:
    rows = logprobs.chat_logprobs(generation.tokenizer, choice.logprobs) if options.logprobs else None
    fields: dict[str, Any] = {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": rows,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if options.token_ids:
        fields["token_ids"] = choice.token_ids
    return fields


class ChatChunks:
    """Events of one stream. The bytes that never change are made once; a token costs one small JSON string."""

    def __init__(self, generation: Generation, head: Head, options: ChatOptions) -> None:
        self._generation = generation
        self._options = options
        self._event = head.event("chat.completion.chunk")
        self._plain_tail = b'},"logprobs":null,"finish_reason":null}]'
        self._opened = False
        self._with_tokens = options.logprobs or options.token_ids

    def pieces(self, pieces: list[Piece]) -> bytes:
        """Events for what one step brought; before the first of them, the role of every choice in order."""
        events = []
        if not self._opened:
            self._opened = True
            events = [self._role(index) for index in range(self._generation.job.n)]
        events += map(self._piece, pieces)
        return b"".join(events)

    def closing(self) -> bytes:
        if not self._options.include_usage:
            return DONE
        return self._event + b',"choices":[],"usage":' + orjson.dumps(self._generation.usage()) + END + DONE

    def _role(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        fields: dict[str, Any] = {"delta": delta, "logprobs": None, "finish_reason": None}
        if self._options.token_ids:
            fields["prompt_token_ids"] = self._generation.parts[0].request.prompt
        return self._rich(index, fields)

    def _piece(self, piece: Piece) -> bytes:
        if piece.finish_reason is None and not self._with_tokens:
            return self._plain(piece.choice, piece.text) if piece.text else b""
        rows = None
        if self._options.logprobs:
            rows = logprobs.chat_logprobs(self._generation.tokenizer, piece.logprobs or ())
        delta = {"content": piece.text} if piece.text or piece.finish_reason is None else {}
        fields: dict[str, Any] = {"delta": delta, "logprobs": rows, "finish_reason": piece.finish_reason}
        if piece.finish_reason is not None:
            fields["stop_reason"] = piece.stop_reason
        if self._options.token_ids:
            fields["token_ids"] = piece.token_ids
        explained = explanation(self._generation) if self._explains(piece) else {}
        return self._rich(piece.choice, fields, explained)

    def _explains(self, piece: Piece) -> bool:
        """Once, at the end of the first choice."""
        return self._options.explain_cache and piece.choice == 0 and piece.finish_reason is not None

    def _plain(self, index: int, text: str) -> bytes:
        choice = b',"choices":[{"index":%d,"delta":{"content":%b' % (index, orjson.dumps(text))
        return self._event + choice + self._plain_tail + self._usage() + END

    def _rich(self, index: int, fields: dict[str, Any], beside: Mapping[str, Any] = NOTHING) -> bytes:
        """``beside``: what belongs to the whole answer."""
        choice = orjson.dumps({"index": index, **fields})
        more = b"," + orjson.dumps(beside)[1:-1] if beside else b""
        return self._event + b',"choices":[' + choice + b"]" + more + self._usage() + END

    def _usage(self) -> bytes:
        if not self._options.include_usage:
            return b""
        if not self._options.continuous_usage:
            return b',"usage":null'
        return b',"usage":' + orjson.dumps(self._generation.usage())
