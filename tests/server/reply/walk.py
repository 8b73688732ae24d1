"""Random replies that a grammar allows, written without a model."""

import random

from plait_engine.grammar import GrammarTokenizer, Matcher
from plait_engine.request import Grammar
from plait_server.text.tokenizer import TextTokenizer

END = 0
"""The tokenizer's end token."""
MAX_TOKENS = 4_000
CLOSERS = ('"', "}", "]", "\n</parameter>\n", "<escape>", '<|"|>', "</think>")


def allowed_tokens(bits: bytes) -> list[int]:
    return [8 * place + bit for place, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]


def walk(grammar: Grammar, tokenizer: TextTokenizer, chance: random.Random) -> str:
    """Takes any token that may come next, often what closes something, and ends when it may."""
    matcher = Matcher(grammar, GrammarTokenizer(tokenizer.as_json(), tokenizer.vocab_size, [END]))
    closers = [tokenizer.encode(text, add_special_tokens=False) for text in CLOSERS]
    tokens: list[int] = []
    while not matcher.complete:
        assert len(tokens) < MAX_TOKENS, tokenizer.decode(tokens)
        allowed = allowed_tokens(matcher.bits())
        if END in allowed:
            break
        may_close = [ids for ids in closers if matcher._matcher.validate_tokens(ids) == len(ids)]
        taken = chance.choice(may_close) if may_close and chance.random() < 0.5 else [chance.choice(allowed)]
        matcher.consume(taken)
        assert matcher.error is None
        tokens += taken
    return tokenizer.decode(tokens)
