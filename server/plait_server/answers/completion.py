"""Answers of /v1/completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait_engine.request import TokenLogprobs
from plait_server import logprobs
from plait_server.answers.chunks import AnswerChunks
from plait_server.answers.collected import Choice
from plait_server.answers.explanation import NOTHING, explanation
from plait_server.answers.head import Head
from plait_server.answers.options import AnswerOptions
from plait_server.generation import Generation
from plait_server.sequence_text import Piece
from plait_server.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(AnswerOptions):
    echoes: tuple[str, ...] = ()
    """The prompts' texts; empty without echo."""
    told: int = 1
    """Choices for each prompt; more may have been drawn."""


class EchoedPrompt:
    """The prompt as the beginning of a choice's text, with its log-probabilities once they are known."""

    def __init__(self, tokenizer: TextTokenizer, text: str, token_ids: Sequence[int]) -> None:
        self.text = text
        self.token_ids = token_ids
        self._tokenizer = tokenizer

    def offsets(self) -> list[int]:
        """Where each token's text begins. The text may have been normalized; then the nearest place is given."""
        places, place = [], 0
        detokenizer = self._tokenizer.detokenizer()
        for token_id in self.token_ids:
            places.append(min(place, len(self.text)))
            place += len(detokenizer.push(token_id))
        return places

    def logprobs(self, rows: Sequence[TokenLogprobs | None] | None) -> tuple[list[TokenLogprobs | None], list[int]]:
        return list(rows or [None] * len(self.token_ids)), self.offsets()


def answer(generation: Generation, head: Head, choices: list[Choice], options: CompletionOptions) -> dict[str, Any]:
    """The whole document of an answer that is not streamed."""
    return {
        **head.fields("text_completion"),
        "choices": [choice_fields(generation, choice, options) for choice in choices],
        "usage": generation.usage(),
        **(explanation(generation) if options.explain_cache else NOTHING),
    }


def choice_fields(generation: Generation, choice: Choice, options: CompletionOptions) -> dict[str, Any]:
    tokenizer = generation.tokenizer
    place = choice.index // options.told
    part = generation.parts[place]
    text, ids, offsets = choice.text, list(choice.token_ids), list(choice.offsets)
    rows: list[TokenLogprobs | None] = list(choice.logprobs)
    if options.echoes:
        text = options.echoes[place] + text
        if options.logprobs:
            echo = EchoedPrompt(tokenizer, options.echoes[place], part.request.prompt)
            prompt_rows, prompt_offsets = echo.logprobs(part.prompt_logprobs)
            rows, offsets, ids = prompt_rows + rows, prompt_offsets + offsets, [*part.request.prompt, *ids]
    fields: dict[str, Any] = {
        "index": choice.index,
        "text": text,
        "logprobs": logprobs.completion_logprobs(tokenizer, rows, ids, offsets) if options.logprobs else None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if options.prompt_logprobs and part.prompt_logprobs is not None:
        fields["prompt_logprobs"] = logprobs.prompt_logprobs(tokenizer, part.prompt_logprobs)
    if options.token_ids:
        fields["prompt_token_ids"] = part.request.prompt
        fields["token_ids"] = choice.token_ids
    return fields


class CompletionChunks(AnswerChunks):
    kind = "text_completion"
    before_text = b',"text":'
    behind_text = b',"logprobs":null,"finish_reason":null,"stop_reason":null'

    def __init__(self, generation: Generation, head: Head, options: CompletionOptions) -> None:
        super().__init__(generation, head, options)
        self._echoes = options.echoes
        self._unseen = set(range(len(generation.parts))) if options.echoes else set()
        self._told_ids: set[int] = set()

    def _opening(self, pieces: list[Piece]) -> bytes:
        first = pieces[0].choice
        begins = first < self._generation.job.n if self._unseen else first == 0
        return b"" if begins else self._plain(0, "")

    def _piece(self, piece: Piece) -> bytes:
        if self._unseen:
            return self._echo(piece.choice // self._generation.job.n) + self._own(piece)
        return self._own(piece)

    def _own(self, piece: Piece) -> bytes:
        if piece.finish_reason is None and not self._with_tokens:
            return self._plain(piece.choice, piece.text) if piece.text else b""
        fields: dict[str, Any] = {"text": piece.text, "logprobs": None}
        if self._options.logprobs:
            fields["logprobs"] = logprobs.completion_logprobs(
                self._generation.tokenizer, piece.logprobs or (), piece.token_ids, piece.offsets
            )
        fields |= {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}
        if self._options.token_ids:
            fields["token_ids"] = piece.token_ids
            if piece.choice not in self._told_ids:
                self._told_ids.add(piece.choice)
                fields["prompt_token_ids"] = self._generation.parts[
                    piece.choice // self._generation.job.n
                ].request.prompt
        return self._rich(piece.choice, fields, self._explanation(piece))

    def _echo(self, place: int) -> bytes:
        """The prompt, once for each of its choices, before anything of them."""
        if place not in self._unseen:
            return b""
        self._unseen.discard(place)
        part = self._generation.parts[place]
        echo = EchoedPrompt(self._generation.tokenizer, self._echoes[place], part.request.prompt)
        fields: dict[str, Any] = {"text": echo.text, "logprobs": None, "finish_reason": None, "stop_reason": None}
        if self._options.logprobs:
            rows, offsets = echo.logprobs(part.prompt_logprobs)
            fields["logprobs"] = logprobs.completion_logprobs(
                self._generation.tokenizer, rows, part.request.prompt, offsets
            )
        return b"".join(self._rich(choice.choice, fields) for choice in part.choices)
