"""Where checkpoints are worth their bytes. All of them become rows of the scans' chunk table: no step is split."""

from dataclasses import dataclass

from plait_engine.state.resume_point import Match
from plait_engine.state.spec import PagedSpec, Position, StateGroup

LEAST_INTERVAL = 256
"""Tokens: below this a checkpoint costs more to keep than the tokens to compute."""


@dataclass(frozen=True)
class Placement:
    """``interval``: tokens between checkpoints inside long prompts."""

    interval: int

    @classmethod
    def for_groups(cls, groups: tuple[StateGroup, ...]) -> "Placement":
        """Checkpoints every so many tokens that they take about as much memory as the keys and values between them."""
        slots = sum(g.unit_bytes * g.units_per_slot for g in groups if not g.paged)
        kv = sum(g.unit_bytes / g.page_size for g in groups if isinstance(g.spec, PagedSpec) and g.spec.window is None)
        wanted = slots / kv if kv else LEAST_INTERVAL
        interval = LEAST_INTERVAL
        while interval < wanted:
            interval *= 2
        return cls(interval)

    def positions(
        self, length: int, marks: tuple[int, ...], branch: int, match: Match, resumed: Position
    ) -> list[Position]:
        """Positions at which a prompt of ``length`` tokens that goes on from ``resumed`` leaves a checkpoint.

        ``marks`` are those that the front end knows to be worth it: the stable point of a chat prompt, the end of the
        system prompt, what the client asked for. Without any, the last position from which the same prompt can go on.
        Where the prompt leaves what is known (``branch``), others will leave it too.
        """
        last = length - 1
        wanted = {*marks} if marks else {last}
        wanted.update(range(self.interval, last, self.interval))
        wanted.add(branch)
        had = {point.position for point in match.points}
        return sorted(Position(p) for p in wanted if resumed < p <= last and p not in had)
