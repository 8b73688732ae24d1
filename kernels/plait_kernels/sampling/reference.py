"""The sampler in plain PyTorch."""

import torch
from torch import Tensor

from plait_kernels.sampling import GREEDY_BELOW, Logprobs, Penalties, SamplingTensors


def penalise(logits: Tensor, penalties: Penalties) -> Tensor:
    if penalties == Penalties():
        return logits
    logits = logits.clone()
    if (repeated := penalties.repeated) is not None:
        at = (repeated.rows, repeated.tokens)
        old = logits[at]
        logits[at] = torch.where(old > 0, old / repeated.values, old * repeated.values)
    if (added := penalties.added) is not None:
        logits.index_put_((added.rows, added.tokens), added.values, accumulate=True)
    if (banned := penalties.banned) is not None:
        logits[banned.rows, banned.tokens] = -torch.inf
    return logits


def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    best = logits.argmax(dim=-1)
    if params.all_greedy:
        return best
    greedy = params.temperature < GREEDY_BELOW
    temperature = params.temperature.masked_fill(greedy, 1.0).unsqueeze(-1)
    # The maximum goes first: a small temperature cannot overflow what is at most 0.
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if not params.unlimited:
        scores = _limit(scores, params)
    return torch.where(greedy, best, _draw(scores.softmax(dim=-1), params.uniform))


def _limit(scores: Tensor, params: SamplingTensors) -> Tensor:
    """``scores`` with what min-p, top-k and top-p drop at minus infinity. The best score of each row is 0."""
    scores = scores.masked_fill(scores < params.min_p.log().unsqueeze(-1), -torch.inf)
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(scores.shape[-1], device=scores.device)
    top_k = params.top_k.masked_fill(params.top_k == 0, scores.shape[-1])
    dropped = place >= top_k.unsqueeze(-1)
    ordered = ordered.masked_fill(dropped, -torch.inf)
    probabilities = ordered.softmax(dim=-1).double()
    reached_before = probabilities.cumsum(dim=-1) - probabilities
    # p = 1 drops nothing, even where the sum reaches 1 by rounding.
    limit = params.top_p.double().masked_fill(params.top_p >= 1.0, torch.inf)
    ordered = ordered.masked_fill(reached_before >= limit.unsqueeze(-1), -torch.inf)
    return torch.empty_like(scores).scatter_(-1, ids, ordered)


def _draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    passed = probabilities.double().cumsum(dim=-1)
    total = passed[:, -1:]
    token = torch.searchsorted(passed, uniform.unsqueeze(-1) * total, right=True)
    last_kept = (passed < total).sum(dim=-1, keepdim=True)  # uniform * total may round up to the total
    return torch.minimum(token, last_kept).squeeze(-1)


def logprobs(logits: Tensor, chosen: Tensor, k: int) -> Logprobs:
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    score = logits.gather(-1, chosen.unsqueeze(-1))
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    return Logprobs(
        chosen=(score - normaliser).squeeze(-1),
        ranks=(logits > score).sum(dim=-1) + 1,
        top_ids=ids[:, :k].contiguous(),  # A view would keep all of them.
        top=ordered[:, :k] - normaliser,
    )
