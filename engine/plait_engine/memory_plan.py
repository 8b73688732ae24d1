"""What goes where in memory, to the byte, before anything is loaded; and how many sequences that lets run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from plait_engine.config import ConfigError
from plait_engine.state.pools import choose_slab_bytes
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import StateGroup

LEAST_FREE_SHARE = 0.02
"""Of what was free, to be free still when everything is warmed up: allocators and libraries grow a little."""


@dataclass(frozen=True)
class MemoryPlan:
    """``max_seqs`` is what can run at the same time; ``bound`` says what set it. ``max_model_len`` is what the model
    allows, ``allowed_len``, or less where memory holds no sequence of that length."""

    budget_bytes: int
    weights_bytes: int
    activation_bytes: int
    slab_bytes: int
    slabs: int
    groups: tuple[StateGroup, ...]
    max_seqs: int
    bound: str
    max_batch_tokens: int
    max_model_len: int
    allowed_len: int

    @property
    def arena_bytes(self) -> int:
        return self.slab_bytes * self.slabs

    def concurrency(self, tokens: int) -> int:
        """Sequences of ``tokens`` tokens each that fit at the same time, whatever ``max_seqs`` is."""
        return _largest(
            lambda n: _slabs_for(self.groups, self.slab_bytes, n, tokens, self.max_batch_tokens) <= self.slabs
        )

    def pin_slabs(self, share: float) -> int:
        """Slabs that pinned prefixes may fill: ``share`` of all, but the longest sequence always fits beside them."""
        longest = _slabs_for(self.groups, self.slab_bytes, 1, self.max_model_len, self.max_batch_tokens)
        return max(0, min(int(share * self.slabs), self.slabs - longest))

    def describe(self) -> str:
        lengths = [n for n in (128, 1024, 8192, 32768, 131072) if n < self.max_model_len] + [self.max_model_len]
        lines = [
            f"  weights      {_human(self.weights_bytes)}",
            f"  activations  {_human(self.activation_bytes)} for steps of {self.max_batch_tokens} tokens",
            f"  arena        {_human(self.arena_bytes)} in {self.slabs} slabs of {_human(self.slab_bytes)}",
            f"  budget       {_human(self.budget_bytes)}",
        ]
        for group in self.groups:
            total = group.layer_bytes * len(group.layers)
            size = f"{total / group.page_size:,.0f} bytes a token" if group.paged else f"{_human(total)} a sequence"
            unit = "page" if group.paged else "layer's row"
            lines.append(
                f"  {group.spec.kind}: {len(group.layers)} layers, {size}, {_human(group.unit_bytes)} a {unit}"
            )
        bound = (
            "as the model allows" if self.max_model_len == self.allowed_len else f"memory holds no {self.allowed_len:,}"
        )
        lines.append(f"  length       {self.max_model_len:,} tokens ({bound})")
        lines.append(f"  concurrency  {self.max_seqs} sequences ({self.bound})")
        lines.extend(f"               {self.concurrency(n):,} of {n:,} tokens fit in the arena" for n in lengths)
        return "\n".join(lines)


def plan_memory(
    groups: tuple[StateGroup, ...],
    *,
    budget_bytes: int,
    weights_bytes: int,
    activation_bytes: Callable[[int], int],
    max_seqs: int,
    max_batch_tokens: int,
    max_model_len: int,
) -> MemoryPlan:
    """Divide the budget; ``activation_bytes`` is what a step needs, by the number of sequences that may run.

    Raises ``ConfigError`` when not even one sequence of one page fits.
    """
    slab_bytes = choose_slab_bytes(groups)
    activations = cache(activation_bytes)

    def need(sequences: int) -> int:
        state = slab_bytes * _slabs_for(groups, slab_bytes, sequences, 1, max_batch_tokens)
        return weights_bytes + activations(sequences) + state

    most, bound = max_seqs, "as max_seqs says"
    if max_batch_tokens < most:
        most = max_batch_tokens
        bound = f"max_seqs is {max_seqs}; a step of {max_batch_tokens} tokens has room for no more"
    if need(most) > budget_bytes:
        most = _largest(lambda n: need(n) <= budget_bytes, most)
        bound = f"max_seqs is {max_seqs}; memory holds {most}"
    if most < 1:
        raise ConfigError(
            f"a memory budget of {_human(budget_bytes)} holds no running sequence: weights take "
            f"{_human(weights_bytes)}, a step's activations {_human(activations(1))}, and with the smallest state "
            f"{_human(need(1))} are needed; raise --memory, or lower --max-batch-tokens"
        )
    slabs = (budget_bytes - weights_bytes - activations(most)) // slab_bytes
    return MemoryPlan(
        budget_bytes,
        weights_bytes,
        activations(most),
        slab_bytes,
        slabs,
        groups,
        most,
        bound,
        max_batch_tokens,
        _largest(lambda n: _slabs_for(groups, slab_bytes, 1, n, max_batch_tokens) <= slabs, max_model_len),
        max_model_len,
    )


def left_over(plan: MemoryPlan, before: int, after: int) -> str:
    """What a warmed-up engine says of the device's memory: ``before`` and ``after`` are the bytes that were free."""
    beside = before - after - plan.weights_bytes - plan.arena_bytes - plan.activation_bytes
    line = f"memory: {_human(max(0, beside))} taken beside the plan (graphs, libraries, kernels), {_human(after)} free"
    lacking = int(before * LEAST_FREE_SHARE) - after
    if lacking > 0:
        line += f"; that is little: set --memory to {_human(max(0, plan.budget_bytes - lacking))} or less"
    return line


def _slabs_for(groups: tuple[StateGroup, ...], slab_bytes: int, sequences: int, tokens: int, max_chunk: int) -> int:
    """Slabs for that many sequences of that length, with the reserved page and slot."""
    demand = SequenceState(groups).admission_demand(tokens, max_chunk)
    total = 0
    for group in groups:
        reserved = 1 if group.paged else group.units_per_slot
        total += -(-(reserved + demand[group.id] * sequences) // (slab_bytes // group.unit_bytes))
    return total


def _largest(fits: Callable[[int], bool], most: int = 1 << 24) -> int:
    """The largest n <= most that fits, by bisection; 0 when none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _human(n_bytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:,.2f} {unit}"
    return f"{n_bytes} bytes"
