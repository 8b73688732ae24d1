"""From logits to token ids: penalties, filters, inverse-CDF sampling, and log-probabilities.

Order: ``penalise`` (repetition, then presence, frequency and bias, then bans), then in ``sample`` temperature, min-p,
top-k, top-p. Log-probabilities are of whatever logits they are given; by default the engine gives the raw ones.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

GREEDY_BELOW = 1e-5
"""A lower temperature than this is greedy: dividing by it leaves the best token anyway, or overflows."""


@dataclass(frozen=True)
class SamplingTensors:
    """How each of R rows is sampled.

    ``temperature`` fp32 ``[R]`` (below ``GREEDY_BELOW``: the best token), ``top_k`` int64 ``[R]`` (0: no limit),
    ``top_p`` fp32 ``[R]`` in (0, 1], ``min_p`` fp32 ``[R]`` in [0, 1], ``uniform`` fp64 ``[R]`` in [0, 1): the row's
    random number. The two flags say without a look at the device what all rows have in common: nothing but argmax is
    wanted; no row has a limit by top_k, top_p or min_p.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor
    all_greedy: bool = False
    unlimited: bool = False


@dataclass(frozen=True)
class Entries:
    """Scattered entries of ``[R, V]`` logits: ``rows``, ``tokens`` int64 ``[n]``, ``values`` fp32 ``[n]``."""

    rows: Tensor
    tokens: Tensor
    values: Tensor


@dataclass(frozen=True)
class Penalties:
    """What changes single logits; None where no row asks for it.

    ``repeated``: tokens of prompt or output, each (row, token) at most once, with the row's repetition penalty.
    ``added``: summed onto the logits: the bias, and ``-presence - frequency * count`` for tokens of the output.
    ``banned``: tokens that may not come now (``min_tokens``); values are ignored.
    """

    repeated: Entries | None = None
    added: Entries | None = None
    banned: Entries | None = None


@dataclass(frozen=True)
class Logprobs:
    """``chosen`` fp32 ``[R]``, ``ranks`` int64 ``[R]`` from 1, ``top_ids`` int64, ``top`` fp32 ``[R, k]``, best first.

    Of equals the lower token id comes first. The chosen token's value is the identical float in ``top``.
    """

    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top: Tensor


class Sample(Protocol):
    """fp32 ``logits [R, V]`` to token ids int64 ``[R]``.

    The kept tokens are searched in vocabulary order for the first whose cumulated probability passes
    ``uniform * total``, so the token depends on nothing but its row. top-p keeps the smallest set of best tokens that
    reaches p of what top-k left, the crossing one included; of equals the lower id is kept first.
    """

    def __call__(self, logits: Tensor, params: SamplingTensors) -> Tensor: ...


class Penalise(Protocol):
    """The logits with penalties applied; ``logits`` itself is left as it is (and returned, where nothing applies)."""

    def __call__(self, logits: Tensor, penalties: Penalties) -> Tensor: ...


class ComputeLogprobs(Protocol):
    """Log-probabilities of ``chosen`` int64 ``[R]`` and of the ``k`` best tokens under fp32 ``logits [R, V]``."""

    def __call__(self, logits: Tensor, chosen: Tensor, k: int) -> Logprobs: ...
