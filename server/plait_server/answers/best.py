"""The best of several answers to each prompt: those whose tokens the model found likeliest."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from plait_server.answers.collected import Choice


def best(choices: Sequence[Choice], drawn: int, kept: int) -> list[Choice]:
    """``kept`` of every ``drawn`` choices, which belong to one prompt, best first and numbered anew.

    All of them as they are, when all are kept.
    """
    if kept == drawn:
        return list(choices)
    found: list[Choice] = []
    for start in range(0, len(choices), drawn):
        ranked = sorted(choices[start : start + drawn], key=likelihood, reverse=True)[:kept]
        found += [replace(choice, index=len(found) + place) for place, choice in enumerate(ranked)]
    return found


def likelihood(choice: Choice) -> float:
    """Mean log-probability of a token, so that length alone is no fault."""
    return fmean(row.logprob for row in choice.logprobs) if choice.logprobs else 0.0
