"""POST /tokenize and /detokenize, GET /tokenizer_info."""

import asyncio
from typing import Any

from fastapi import APIRouter

from plait_server.body import StrictRoute
from plait_server.front import Front
from plait_server.prepare import chat_prompt, check_chars, check_ids
from plait_server.protocol.tokenize import DetokenizeBody, TokenizeMessages, TokenizeText

router = APIRouter(route_class=StrictRoute)


@router.post("/tokenize")
async def tokenize(body: TokenizeText | TokenizeMessages, front: Front) -> dict[str, Any]:
    """Token ids of a text, or of a conversation as the chat template writes it."""
    front.health.require_engine()
    front.model(body.model)
    if isinstance(body, TokenizeText):
        text, special = body.prompt, body.add_special_tokens is not False
    else:
        text = await chat_prompt(front, body, **body.template_kwargs)
        special = bool(body.add_special_tokens)
    check_chars(front, len(text), "prompt")
    tokenizer = front.text.tokenizer
    ids = await tokenizer.encode_soon(text, add_special_tokens=special)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": front.engine.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = [tokenizer.token(token_id) for token_id in ids]
    return answer


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, front: Front) -> dict[str, Any]:
    """The text of token ids."""
    front.health.require_engine()
    front.model(body.model)
    check_ids(front, body.tokens, "tokens")
    skip = bool(body.skip_special_tokens)
    text = await asyncio.to_thread(front.text.tokenizer.decode, body.tokens, skip_special_tokens=skip)
    return {"prompt": text}


@router.get("/tokenizer_info")
async def tokenizer_info(front: Front) -> dict[str, Any]:
    """What evaluation tools ask before they tokenize on their own."""
    front.health.require_engine()
    template = front.text.template
    return {
        **front.text.special_tokens,
        "vocab_size": front.engine.info.vocab_size,
        "model_max_length": front.engine.info.max_model_len,
        "chat_template": template.source if template else None,
    }
