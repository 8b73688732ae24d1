"""Grammars that answers follow: compiled, and followed token by token. llguidance does the work."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from plait_engine.request import Grammar, GrammarKind

WHITESPACE = r"(\n[ ]{0,40}|[ ])?"
"""Between the tokens of JSON: enough to write it on one line or indented, and no room to go on for ever."""


class BadGrammar(ValueError):
    """The message says what is wrong with it, for the client."""


def limits() -> LLParserLimits:
    """Against grammars made to be expensive: fractions of the library's defaults, and far above what schemas need."""
    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=25_000,
        max_lexer_states=50_000,
        max_grammar_size=50_000,
        precompute_large_lexemes=False,
        verbose_errors=False,  # Errors reach logs and clients; the text that led to them should not.
    )


class GrammarTokenizer:
    """A model's tokenizer in llguidance's form. Making one takes up to a second for a large vocabulary."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        ends = list(eos_token_ids) or None
        try:
            self.inner = LLTokenizer(tokenizer_json, eos_token=ends)
            if self.inner.vocab_size < vocab_size:
                self.inner = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=ends)
        except Exception as error:  # The library raises whatever its parts raise.
            raise BadGrammar(f"this model's tokenizer cannot be used with a grammar: {error}") from error

    @classmethod
    def load(cls, path: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> "GrammarTokenizer":
        return cls(path.read_text(), vocab_size, eos_token_ids)


class Matcher:
    """Where one answer stands in its grammar. Raises ``BadGrammar`` when the text is none, or allows no answer."""

    def __init__(self, grammar: Grammar, tokenizer: GrammarTokenizer) -> None:
        try:
            self._matcher = LLMatcher(tokenizer.inner, source(grammar), log_level=0, limits=limits())
        except ValueError as error:
            raise BadGrammar(short(str(error))) from error
        self._raise_error()
        # Some mistakes show with the first mask only: that nothing is allowed is one of them.
        self._everything = b"\xff" * len(self._matcher.compute_bitmask())
        self._raise_error()

    def consume(self, tokens: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(tokens))

    def forced(self) -> list[int]:
        """Tokens of which each is the only one that may come when it is its turn; empty where there is a choice."""
        return [] if self._matcher.is_error() else self._matcher.compute_ff_tokens()

    def bits(self) -> bytes:
        """A bit for each token of the vocabulary, lowest first: whether it may come next. Lets other threads run.

        All ones after an error, so that there is something to pick; whoever follows the matcher throws it away.
        """
        if self._matcher.is_error():
            return self._everything
        mask = self._matcher.compute_bitmask()
        return self._everything if self._matcher.is_error() else mask

    @property
    def error(self) -> str | None:
        return short(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def complete(self) -> bool:
        """Nothing may follow but an end token."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _raise_error(self) -> None:
        if (error := self.error) is not None:
            raise BadGrammar(error)


def source(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON:
            return LLMatcher.grammar_from_json_schema(grammar.text, {"whitespace_pattern": WHITESPACE})
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)


def short(error: str) -> str:
    """The line that says what is wrong. What stands around it, and in angle brackets behind, is the grammar itself."""
    head = error.partition("\n<")[0]
    if head.startswith("NoExtension"):
        return "nothing can match it"
    lines = [line.strip() for line in head.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error:")] or lines[:1]
    return told[0].removeprefix("error: ")[:300] if told else "it cannot be followed"
