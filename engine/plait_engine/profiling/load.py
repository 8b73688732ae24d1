"""What a profile runs: so many sequences of so many tokens, decoding or being prefilled."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from plait_engine.engine import Engine
from plait_engine.request import Request, SamplingParams

Kind = Literal["decode", "prefill"]
_PATTERN = re.compile(r"^(decode|prefill):(\d+)x(\d+)$")
STEPS = 10_000
"""Tokens that a decoding sequence may still generate: more than any profile runs."""


class BadLoad(ValueError):
    """The message says how a load is written."""


@dataclass(frozen=True)
class ProfileLoad:
    kind: Kind
    sequences: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> "ProfileLoad":
        match = _PATTERN.match(text)
        if match is None or int(match[2]) < 1 or int(match[3]) < 1:
            raise BadLoad(f"{text!r} is no load; write it like decode:32x1024 (sequences x tokens) or prefill:1x1024")
        kind: Kind = "decode" if match[1] == "decode" else "prefill"
        return cls(kind, int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.kind}:{self.sequences}x{self.tokens}"

    @contextmanager
    def running(self, engine: Engine, turn: int) -> Iterator[Callable[[int], list[float]]]:
        """Yields what runs the load: decodes for so many steps, prompts to their end; the seconds of each step.

        Decodes have their prompts behind them by then. Afterwards the engine is as it was before.
        """
        vocab, limit = engine.runner.vocab_size, engine.scheduler.limits.max_model_len
        draw = random.Random(turn)
        output = min(STEPS, limit - self.tokens) if self.kind == "decode" else 1
        for i in range(self.sequences):
            prompt = tuple(draw.choices(range(vocab), k=self.tokens))
            sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
            engine.add(Request(id=f"{self} {turn} {i}", prompt=prompt, sampling=sampling))
        if self.kind == "decode":
            while any(s.remaining > 1 for s in engine.scheduler.running) or engine.scheduler.waiting:
                engine.step()
        try:
            yield lambda steps: self._run(engine, steps)
        finally:
            for i in range(self.sequences):
                engine.abort(f"{self} {turn} {i}")
            while not engine.idle:
                engine.step()

    def _run(self, engine: Engine, steps: int) -> list[float]:
        seconds: list[float] = []
        while not engine.idle if self.kind == "prefill" else len(seconds) < steps:
            started = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - started)
        return seconds

    def refuse(self, engine: Engine) -> None:
        """Raises ``BadLoad`` where the load does not fit."""
        limits = engine.scheduler.limits
        if self.sequences > limits.max_seqs:
            raise BadLoad(
                f"{self}: at most {limits.max_seqs} sequences run at a time here; see --max-seqs and --memory"
            )
        if self.tokens + 64 > limits.max_model_len:
            raise BadLoad(f"{self}: sequences have at most {limits.max_model_len} tokens here, 64 of them generated")
