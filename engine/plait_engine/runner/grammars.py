"""The grammars of the sequences at hand: compiled before a sequence is queued, followed while it grows.

A matcher belongs to its sequence and follows its tokens, so preemption and another row do not concern it. The next mask
is computed in a thread as soon as a token is known, which is while the next step is planned and runs.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from functools import cached_property
from pathlib import Path
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import torch

from plait_engine.grammar import BadGrammar, GrammarTokenizer, Matcher
from plait_engine.runner.masks import Masks
from plait_engine.sequence import Sequence

THREADS = 2


class Verdict(Enum):
    """What a grammar says of an answer so far."""

    OPEN = "open"
    COMPLETE = "complete"
    BROKEN = "broken"


class Followed:
    """A sequence's matcher, and the mask for its next token."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.consumed = 0
        self.mask: Future[bytes] | None = None


class Grammars:
    """``load`` gives the tokenizer; it is called once, in a thread, for the first request that has a grammar.

    ``fast_forward``: tell of tokens that a grammar forces, so that they need not be sampled one by one.
    """

    def __init__(self, load: Callable[[], GrammarTokenizer] | None, *, fast_forward: bool = True) -> None:
        self._load = load
        self._fast_forward = fast_forward
        self._loading = Lock()
        self._preparing: dict[Sequence, Future[Matcher]] = {}
        self._followed: WeakKeyDictionary[Sequence, Followed] = WeakKeyDictionary()
        self._errors: WeakKeyDictionary[Sequence, str] = WeakKeyDictionary()

    @classmethod
    def of_folder(
        cls, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...], *, fast_forward: bool
    ) -> "Grammars":
        path = folder / "tokenizer.json"
        if not path.is_file():
            return cls(None)
        return cls(lambda: GrammarTokenizer.load(path, vocab_size, eos_token_ids), fast_forward=fast_forward)

    @property
    def available(self) -> bool:
        return self._load is not None

    @property
    def preparing(self) -> bool:
        return bool(self._preparing)

    # Before a sequence is queued --------------------------------------------------------------------------------------

    def prepare(self, sequence: Sequence) -> None:
        """Compile its grammar; the sequence comes back from ``take_prepared``."""
        self._preparing[sequence] = self._threads.submit(self._compile, sequence)

    def take_prepared(self) -> list[Sequence]:
        """Sequences that can be queued now, or (see ``error``) never."""
        if not self._preparing:
            return []
        done = [sequence for sequence, matcher in self._preparing.items() if matcher.done()]
        for sequence in done:
            compiled = self._preparing.pop(sequence)
            if (error := compiled.exception()) is None:
                self._followed[sequence] = Followed(compiled.result())
            else:
                reason = str(error) if isinstance(error, BadGrammar) else "compiling it failed"
                self._errors[sequence] = f"the grammar cannot be used: {reason}"
        return done

    def forget(self, sequence: Sequence) -> bool:
        """Whether the sequence was still being prepared; it does not come back then."""
        return self._preparing.pop(sequence, None) is not None

    def _compile(self, sequence: Sequence) -> Matcher:
        grammar = sequence.request.grammar
        assert grammar is not None
        with self._loading:
            tokenizer = self._tokenizer
        return Matcher(grammar, tokenizer)

    # While it grows ---------------------------------------------------------------------------------------------------

    def follow(self, sequence: Sequence) -> Verdict:
        """Take in the tokens that have come."""
        followed = self._followed[sequence]
        new = sequence.tokens[sequence.prompt_length + followed.consumed :]
        followed.matcher.consume(new)
        followed.consumed += len(new)
        followed.mask = None
        if followed.matcher.error is not None:
            self._errors[sequence] = f"the grammar could not be followed any further: {followed.matcher.error}"
            return Verdict.BROKEN
        return Verdict.COMPLETE if followed.matcher.complete else Verdict.OPEN

    def forced(self, sequence: Sequence) -> list[int]:
        """Tokens that must come next, one behind the other, whatever the model makes of them.

        None where log-probabilities are wanted: these are of logits, which nobody computes for what needs no sampling.
        """
        if not self._fast_forward or sequence.request.sampling.logprobs is not None:
            return []
        return self._followed[sequence].matcher.forced()

    def expect(self, sequence: Sequence) -> None:
        """Begin with the mask of its next token."""
        followed = self._followed[sequence]
        followed.mask = self._threads.submit(followed.matcher.bits)

    def error(self, sequence: Sequence) -> str | None:
        return self._errors.get(sequence)

    def masks(self, sequences: Iterable[Sequence], device: torch.device) -> Masks | None:
        """Of the rows that have a grammar; None when none has."""
        rows, bits = [], []
        for row, sequence in enumerate(sequences):
            if sequence.request.grammar is not None:
                rows.append(row)
                bits.append(np.frombuffer(self._mask(sequence), np.int32))
        if not rows:
            return None
        words = torch.from_numpy(np.stack(bits))
        return Masks(torch.tensor(rows).to(device, non_blocking=True), words.to(device, non_blocking=True))

    def _mask(self, sequence: Sequence) -> bytes:
        """A mask that cannot be computed breaks the matcher: the token that is picked then is never seen."""
        followed = self._followed[sequence]
        return followed.matcher.bits() if followed.mask is None else followed.mask.result()

    # What is made when it is first needed -----------------------------------------------------------------------------

    @cached_property
    def _tokenizer(self) -> GrammarTokenizer:
        assert self._load is not None
        return self._load()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
