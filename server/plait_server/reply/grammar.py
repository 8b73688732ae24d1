"""Grammars of whole replies: reasoning first where the model reasons, then an answer, calls, or either."""

import json

from plait_engine.request import Grammar, GrammarKind
from plait_server.reply.formats.base import Mark
from plait_server.reply.formats.lark import json_rule, slashed, text_until
from plait_server.reply.reasoning import CLOSER


def reply_grammar(answer: Grammar | None, calls: list[str] | None, *, thinking: bool, mark: Mark) -> Grammar | None:
    """``answer`` is what the client asked for, ``calls`` are rules of a format; ``thinking``: the prompt opened it."""
    if calls is None and (answer is None or not thinking):
        return answer
    rules = list(calls or ())
    options = ["calls"] if calls else []
    if answer is not None:
        rules.append(f"answer: {embedded(answer)}")
        options.append("answer")
    body = f"({' | '.join(options)})"
    if thinking:
        rules.append(text_until("reasoning", mark(CLOSER)))
        body = f"reasoning /\\n{{0,2}}/ {body}"
    return Grammar(GrammarKind.LARK, "\n".join([f"start: {body}", *rules]))


def embedded(grammar: Grammar) -> str:
    """As a part of another grammar, in Lark."""
    match grammar.kind:
        case GrammarKind.JSON:
            return json_rule(json.loads(grammar.text))
        case GrammarKind.REGEX:
            return f"/(?:{slashed(grammar.text)})/"
        case GrammarKind.LARK:
            return f"%lark {{\n{grammar.text}\n}}"
