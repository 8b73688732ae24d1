"""What is trained when. Mostly by progress, the share of the training time that has passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WARM_UP_STEPS: Final = 150
DECAY_FROM: Final = 0.6


@dataclass(frozen=True, slots=True)
class Stage:
    length: int  # tokens per row
    until: float  # progress at which the stage ends


# Recall must appear in the short rows; most time goes to what is asked most; the end teaches to look far back.
STAGES: Final = (Stage(512, 0.15), Stage(2048, 0.72), Stage(8192, 1.0))


def stage_at(progress: float, stages: tuple[Stage, ...] = STAGES) -> Stage:
    return next((stage for stage in stages if progress < stage.until), stages[-1])


def rate_at(progress: float, step: int) -> float:
    """Factor on the learning rate: linear warm-up, constant, linear to zero."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, max(0.0, (1 - progress) / (1 - DECAY_FROM)))
