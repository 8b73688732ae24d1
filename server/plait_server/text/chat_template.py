"""Messages to one prompt text, with the model's own jinja template, set up as transformers does."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "conversation", "chat_template", "tokenize", "return_dict"),
        *("add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now"),
    }
)
"""Names that ``chat_template_kwargs`` may not carry: they belong to other parameters, or to the template itself."""
CUT = "\ue000cut-here\ue000 "
"""Marks where the final message ends. The space tells whether the template trims its messages."""


class TemplateFailed(Exception):
    """The messages do not suit the template; the text is the template's own complaint where it has one."""


class Generation(Extension):
    """``{% generation %}`` marks replies for training; here its content is simply kept."""

    tags = {"generation"}  # noqa: RUF012  # jinja reads it as an attribute of either

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML, which no model has seen in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    raise TemplateFailed(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


class ChatTemplate:
    """A compiled template and the special tokens that it may name (``bos_token``, ``eos_token``, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
        self.wants_parts = self._probe_parts()
        """Whether list contents are given to the template as they are; else their texts are joined."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises ``TemplateFailed``. ``kwargs``, ``tools`` among them, may not change what the other arguments say."""
        given = [dict(message) for message in messages]
        if continue_final_message:
            given[-1]["content"] = marked(given[-1].get("content"))
        names = {"tools": None, "documents": None} | self._special_tokens | dict(kwargs or {})
        try:
            text = self._template.render(names, messages=given, add_generation_prompt=add_generation_prompt)
        except TemplateFailed:
            raise
        except Exception as error:
            # Templates are programs: what they raise on unusual messages can be anything, and is the request's fault.
            raise TemplateFailed(f"{type(error).__name__}: {error}") from error
        return cut(text) if continue_final_message else text

    def _probe_parts(self) -> bool:
        """Templates for several media walk over parts; plain ones print a list's Python form. Try, and look."""
        probe = [{"role": "user", "content": [{"type": "text", "text": "probe-of-parts"}]}]
        try:
            text = self.render(probe)
        except TemplateFailed:
            return False
        return "probe-of-parts" in text and "'type'" not in text and '"type"' not in text


def marked(content: Any) -> Any:
    """The content with ``CUT`` behind its last text."""
    if isinstance(content, str):
        return content + CUT
    parts = [dict(part) for part in content or []]
    for part in reversed(parts):
        if "text" in part:
            part["text"] += CUT
            return parts
    raise TemplateFailed("continue_final_message needs a final message with text")


def cut(text: str) -> str:
    place = text.rfind(CUT.strip())
    if place < 0:
        raise TemplateFailed("the template drops the final message, so it cannot be continued")
    return text[:place] if text.startswith(CUT, place) else text[:place].rstrip()
