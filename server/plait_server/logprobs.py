"""Log-probabilities in the two forms that clients know, and vLLM's form for prompts."""

from collections.abc import Sequence
from typing import Any

from plait_engine.request import TokenLogprobs
from plait_server.text.tokenizer import TextTokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


def finite(value: float) -> float:
    return value if value > LOWEST else LOWEST


def token_text(tokenizer: TextTokenizer, token_id: int) -> str:
    """The token as text; half a character is written as its bytes, so that different tokens stay different."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in raw)


def completion_text(tokenizer: TextTokenizer, token_id: int) -> str:
    """As ``token_text``; the older API announces bytes by a prefix."""
    text = token_text(tokenizer, token_id)
    raw = tokenizer.token_bytes(token_id)
    return text if text.encode() == raw else f"bytes:{text}"


def completion_logprobs(
    tokenizer: TextTokenizer,
    rows: Sequence[TokenLogprobs | None],
    token_ids: Sequence[int],
    offsets: Sequence[int],
) -> dict[str, Any]:
    """The four parallel lists of /v1/completions. The first token of an echoed prompt has no probability."""
    spelled = [completion_text(tokenizer, token_id) for token_id in token_ids]
    return {
        "tokens": spelled,
        "token_logprobs": [None if row is None else finite(row.logprob) for row in rows],
        "top_logprobs": [
            None if row is None else completion_top(tokenizer, row, text)
            for row, text in zip(rows, spelled, strict=True)
        ],
        "text_offset": list(offsets),
    }


def completion_top(tokenizer: TextTokenizer, row: TokenLogprobs, chosen: str) -> dict[str, float]:
    """By text, best first. The chosen token is always among them, and its number wins where two read the same."""
    top: dict[str, float] = {}
    for token_id, logprob in row.top:
        top.setdefault(completion_text(tokenizer, token_id), finite(logprob))
    top[chosen] = finite(row.logprob)
    return top


def chat_logprobs(tokenizer: TextTokenizer, rows: Sequence[TokenLogprobs]) -> dict[str, Any]:
    return {
        "content": [
            {
                **chat_token(tokenizer, row.token_id, row.logprob),
                "top_logprobs": [chat_token(tokenizer, token_id, logprob) for token_id, logprob in row.top],
            }
            for row in rows
        ],
        "refusal": None,
    }


def chat_token(tokenizer: TextTokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_text(tokenizer, token_id),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def prompt_logprobs(tokenizer: TextTokenizer, rows: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """Per prompt token, from token id to probability, rank and text: the token that stands there and the best ones."""
    return [None if row is None else prompt_row(tokenizer, row) for row in rows]


def prompt_row(tokenizer: TextTokenizer, row: TokenLogprobs) -> dict[str, Any]:
    entries = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(row.top, start=1)]
    entries.append((row.token_id, row.logprob, row.rank))
    return {
        str(token_id): {
            "logprob": finite(logprob),
            "rank": rank,
            "decoded_token": token_text(tokenizer, token_id),
        }
        for token_id, logprob, rank in entries
    }
