"""How the replies to one request are read, and what they must look like."""

from dataclasses import dataclass, field

from plait_engine.request import Grammar
from plait_server.reply.calls import CallReader
from plait_server.reply.formats.base import ToolFormat, Tools
from plait_server.reply.formats.choose import FORMATS, format_name
from plait_server.reply.grammar import reply_grammar
from plait_server.reply.reader import ReplyReader
from plait_server.reply.reasoning import CLOSER, OPENER, ReasoningSplit
from plait_server.text.tokenizer import TextTokenizer


@dataclass(frozen=True)
class ReplyStyle:
    """How a model writes."""

    calls: ToolFormat
    reasons: bool
    """Whether it reasons between marks before it answers."""

    @classmethod
    def of(cls, template: str, family: str, *, tool_format: str, reasoning_format: str) -> "ReplyStyle":
        """``family`` is the ``model_type``. Formats may be ``auto``: what the template shows, else the family's."""
        name = format_name(template, family) if tool_format == "auto" else tool_format
        reasons = CLOSER in template if reasoning_format == "auto" else reasoning_format == "think"
        return cls(FORMATS[name](), reasons)


@dataclass(frozen=True, kw_only=True)
class ReplyPlan:
    style: ToolFormat
    tools: Tools = field(default_factory=dict)
    """Those that may be called; none, and no calls are looked for."""
    forced: bool = False
    """There must be a call."""
    parallel: bool = True
    """There may be several."""
    reasons: bool = False
    """The model reasons between marks."""
    opened: bool = False
    """Its prompt ends within the reasoning."""

    @property
    def plain(self) -> bool:
        """Replies are text and nothing else."""
        return not self.tools and not self.reasons

    def reader(self) -> ReplyReader:
        reasoning = ReasoningSplit(opened=self.opened) if self.reasons else None
        calls = CallReader(self.style, self.tools, parallel=self.parallel) if self.tools else None
        return ReplyReader(reasoning, calls)

    def grammar(self, answer: Grammar | None, tokenizer: TextTokenizer) -> Grammar | None:
        """What a reply must look like, given what an answer must. A forced call leaves no room for an answer."""
        rules = None
        if self.tools and (self.forced or answer is not None):
            rules = self.style.rules(self.tools, tokenizer.in_grammar, several=self.parallel)
        return reply_grammar(
            None if self.forced else answer, rules, thinking=self.reasons and self.opened, mark=tokenizer.in_grammar
        )

    def shown_ids(self, tokenizer: TextTokenizer) -> frozenset[int]:
        """Special tokens that stand for marks: hidden ones could not be found."""
        calls = (self.style.opener, self.style.closer or "", *self.style.marks) if self.tools else ()
        marks = (*calls, OPENER, CLOSER) if self.reasons else calls
        return frozenset(token for mark in marks if (token := tokenizer.added_id(mark)) is not None)
