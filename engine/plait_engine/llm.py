"""Offline use: ``LLM(model).generate(prompts)``, the same engine in this process."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait_engine.build import build_engine
from plait_engine.config import EngineConfig
from plait_engine.request import FinishReason, Request, SamplingParams, TokenLogprobs


@dataclass
class Completion:
    """What one sequence generated, in token ids."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0


class LLM:
    """An engine without a server. Prompts are token ids: text is the server's affair (see ``plait_server.text``)."""

    def __init__(self, model: str, **settings: Any) -> None:
        self.config = EngineConfig(model=model, **settings)
        built = build_engine(self.config)
        self.info = built.info
        self.engine = built.engine
        self._requests = 0

    def generate(
        self, prompts: Iterable[Sequence[int]], sampling: SamplingParams | Iterable[SamplingParams] | None = None
    ) -> list[Completion]:
        """One completion a prompt, in order. Raises ``CannotFit`` before anything runs if one can never be served."""
        as_tuples = [tuple(prompt) for prompt in prompts]
        if sampling is None or isinstance(sampling, SamplingParams):
            each = [sampling or SamplingParams()] * len(as_tuples)
        else:
            each = list(sampling)
        results: dict[str, Completion] = {}
        try:
            for prompt, params in zip(as_tuples, each, strict=True):
                self._requests += 1
                request = Request(id=f"offline-{self._requests}", prompt=prompt, sampling=params)
                self.engine.add(request)
                results[request.id] = Completion()
            self._run(results)
        finally:
            for id in results:  # Does nothing unless something went wrong, or was interrupted.
                self.engine.abort(id)
        return list(results.values())

    def _run(self, results: dict[str, Completion]) -> None:
        while not self.engine.idle:
            for delta in self.engine.step():
                if delta.error is not None:
                    raise RuntimeError(delta.error)
                result = results[delta.request_id]
                result.token_ids.extend(delta.token_ids)
                result.logprobs.extend(delta.logprobs or ())
                result.prompt_logprobs = delta.prompt_logprobs or result.prompt_logprobs
                result.cached_tokens = max(result.cached_tokens, delta.cached_tokens)
                result.finish_reason = delta.finish_reason or result.finish_reason
