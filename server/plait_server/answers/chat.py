"""Answers of /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from plait_server import logprobs
from plait_server.answers.chunks import AnswerChunks
from plait_server.answers.collected import Choice
from plait_server.answers.explanation import explanation
from plait_server.answers.head import Head
from plait_server.answers.options import AnswerOptions
from plait_server.generation import Generation
from plait_server.reply.events import Call, Content, Event, MoreArguments, Reasoning, whole_calls
from plait_server.reply.plan import ReplyPlan
from plait_server.reply.reader import ReplyReader
from plait_server.sequence_text import Piece


@dataclass(frozen=True, kw_only=True)
class ChatOptions(AnswerOptions):
    reply: ReplyPlan


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
    reader = options.reply.reader()
    fields: dict[str, Any] = {
        "index": choice.index,
        "message": message_fields(reader.read(choice.text, last=True)),
        "logprobs": rows,
        "finish_reason": finish_reason(choice.finish_reason, reader),
        "stop_reason": choice.stop_reason,
    }
    if options.token_ids:
        fields["token_ids"] = choice.token_ids
    return fields


def message_fields(events: Sequence[Event]) -> dict[str, Any]:
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = whole_calls(events)
    fields: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if reasoning:
        fields |= reasoning_fields(reasoning)
    if calls:
        fields["tool_calls"] = [call_fields(call) for call in calls]
    return fields


def reasoning_fields(text: str) -> dict[str, Any]:
    """Under both names that clients know."""
    return {"reasoning": text, "reasoning_content": text}


def call_fields(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{token_hex(12)}", "type": "function", "function": function}


def finish_reason(given: str | None, reader: ReplyReader) -> str | None:
    return "tool_calls" if given == "stop" and reader.called else given


class ChatChunks(AnswerChunks):
    kind = "chat.completion.chunk"
    before_text = b',"delta":{"content":'
    behind_text = b'},"logprobs":null,"finish_reason":null'

    def __init__(self, generation: Generation, head: Head, options: ChatOptions) -> None:
        super().__init__(generation, head, options)
        self._plain_replies = options.reply.plain
        self._readers = [options.reply.reader() for _ in range(generation.job.n)]
        self._calls = [0] * generation.job.n

    def _opening(self, pieces: list[Piece]) -> bytes:  # noqa: ARG002
        """The role of every choice, in order."""
        return b"".join(map(self._role, range(self._generation.job.n)))

    def _role(self, index: int) -> bytes:
        fields = unfinished({"role": "assistant", "content": ""})
        if self._options.token_ids:
            fields["prompt_token_ids"] = self._generation.parts[0].request.prompt
        return self._rich(index, fields)

    def _piece(self, piece: Piece) -> bytes:
        index = piece.choice
        bare = piece.finish_reason is None and not self._with_tokens
        if bare and self._plain_replies:
            return self._plain(index, piece.text) if piece.text else b""
        read = self._readers[index].read(piece.text, last=piece.finish_reason is not None)
        if bare:
            return b"".join(self._event_of(index, event) for event in read)
        deltas = [delta for event in read for delta in self._deltas(index, event)]
        last = deltas.pop() if deltas else {} if piece.finish_reason else {"content": ""}
        return b"".join(self._rich(index, unfinished(delta)) for delta in deltas) + self._with_all(piece, last)

    def _event_of(self, index: int, event: Event) -> bytes:
        if isinstance(event, Content):
            return self._plain(index, event.text)
        return b"".join(self._rich(index, unfinished(delta)) for delta in self._deltas(index, event))

    def _deltas(self, index: int, event: Event) -> list[dict[str, Any]]:
        """A call's id and name come first and once, then its arguments."""
        match event:
            case Content(text):
                return [{"content": text}]
            case Reasoning(text):
                return [reasoning_fields(text)]
            case Call(name, arguments):
                place, self._calls[index] = self._calls[index], self._calls[index] + 1
                begun = {"tool_calls": [{"index": place, **call_fields(Call(name, ""))}]}
                return [begun, self._arguments(place, arguments)] if arguments else [begun]
            case MoreArguments(text):
                return [self._arguments(self._calls[index] - 1, text)]

    @staticmethod
    def _arguments(place: int, text: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": place, "function": {"arguments": text}}]}

    def _with_all(self, piece: Piece, delta: dict[str, Any]) -> bytes:
        """A piece's last event: what else there is to tell of it."""
        rows = None
        if self._options.logprobs:
            rows = logprobs.chat_logprobs(self._generation.tokenizer, piece.logprobs or ())
        reason = finish_reason(piece.finish_reason, self._readers[piece.choice])
        fields: dict[str, Any] = {"delta": delta, "logprobs": rows, "finish_reason": reason}
        if piece.finish_reason is not None:
            fields["stop_reason"] = piece.stop_reason
        if self._options.token_ids:
            fields["token_ids"] = piece.token_ids
        return self._rich(piece.choice, fields, self._explanation(piece))


def unfinished(delta: dict[str, Any]) -> dict[str, Any]:
    return {"delta": delta, "logprobs": None, "finish_reason": None}
