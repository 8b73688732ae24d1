"""Grammars of requests, tried before the engine hears of them: off the event loop, and not for ever."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache

from plait_engine.client import EngineClient
from plait_engine.grammar import BadGrammar, GrammarTokenizer, Matcher
from plait_engine.request import Grammar
from plait_server.errors import bad
from plait_server.text.tokenizer import TextTokenizer

THREADS = 2
REMEMBERED = 256
"""Grammars known to be good: clients send the same ones again and again."""


class GrammarCheck:
    """Makes llguidance's form of the tokenizer for the first grammar, in a thread: until then it costs nothing."""

    def __init__(self, engine: EngineClient, tokenizer: TextTokenizer, seconds: float) -> None:
        self._engine = engine
        self._text = tokenizer
        self._seconds = seconds
        self._try: Callable[[Grammar], None] = lru_cache(REMEMBERED)(self._compile)
        self._loading = asyncio.Lock()

    async def check(self, grammar: Grammar | None, param: str) -> Grammar | None:
        """The grammar, if answers can follow it. Raises ``ApiError`` that says what is wrong with it."""
        if grammar is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            async with self._loading:
                await loop.run_in_executor(self._threads, lambda: self._tokenizer)
            async with asyncio.timeout(self._seconds):
                await loop.run_in_executor(self._threads, self._try, grammar)
        except BadGrammar as error:
            raise bad(param, f"the grammar cannot be used: {error}", "invalid_grammar") from error
        except TimeoutError:
            message = f"the grammar took longer than {self._seconds:g} seconds to compile; send a simpler one"
            raise bad(param, message, "grammar_too_complex") from None
        return grammar

    def _compile(self, grammar: Grammar) -> None:
        Matcher(grammar, self._tokenizer)

    @cached_property
    def _tokenizer(self) -> GrammarTokenizer:
        info = self._engine.info
        return GrammarTokenizer(self._text.as_json(), info.vocab_size, info.eos_token_ids)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
