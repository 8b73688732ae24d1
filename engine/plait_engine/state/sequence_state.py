"""What one running sequence owns: pages by page number, one slot per slot group, and the position of it all."""

import sys

from plait_engine.state.checkpoint import Checkpoint, WindowPages
from plait_engine.state.ledger import Demand, Ledger, Units
from plait_engine.state.pools import StateBug
from plait_engine.state.spec import Granule, GroupId, PagedSpec, Position, StateGroup
from plait_engine.state.unit_copy import UnitCopy

START = Position(0)


class PageRun:
    """The pages of one sequence in one paged group.

    Page number ``i`` holds entries ``[i * page_size, (i + 1) * page_size)``. Behind a window the first pages are
    dropped; they become spares, which the run uses before it asks for new ones::

        page number   0 .. first-1      first .. first+len(pages)-1
                      passed, spared    pages
    """

    def __init__(self, group: StateGroup) -> None:
        assert isinstance(group.spec, PagedSpec)
        self.group = group
        self.spec = group.spec
        self.first = 0
        self.pages: list[Granule] = []
        self.spares: list[Granule] = []

    @property
    def capacity(self) -> int:
        """Tokens whose entries have a place in the pages."""
        return (self.first + len(self.pages)) * self.group.page_size * self.spec.ratio

    def missing(self, tokens: int) -> int:
        """Pages to take from the ledger so that the first ``tokens`` tokens have entries."""
        return max(0, self.group.pages_for(tokens) - self.first - len(self.pages) - len(self.spares))

    def extend(self, tokens: int, fresh: list[Granule]) -> None:
        self.spares.extend(fresh)
        while self.first + len(self.pages) < self.group.pages_for(tokens):
            self.pages.append(self.spares.pop())

    def pass_window(self, position: Position, ledger: Ledger) -> None:
        """Drop pages that no token at ``position`` or later can see. What others hold too is not ours to use again."""
        first = self.spec.needed(position).start // self.group.page_size
        if first > self.first:
            passed = min(first - self.first, len(self.pages))
            for page in self.pages[:passed]:
                if ledger.references(self.group.id, page) == 1:
                    self.spares.append(page)
                else:
                    ledger.give_back(self.group.id, [page])
            del self.pages[:passed]
            self.first += passed

    def window_at(self, position: Position) -> WindowPages:
        """The pages that one needs to go on from ``position``."""
        first = max(self.first, self.spec.needed(position).start // self.group.page_size)
        return WindowPages(first, tuple(self.pages[first - self.first : self.group.pages_for(position) - self.first]))

    def reserve_for(self, tokens: int, max_chunk: int, position: Position) -> int:
        """Pages to take so that ``tokens`` tokens can run in chunks from ``position`` on; earlier ones are shared.

        A page that is partly used at ``position`` is copied, so it counts.
        """
        shared = self.spec.entries(position) // self.group.page_size
        if self.spec.window is None:
            return self.group.pages_for(tokens) - shared
        span = min(tokens, self.spec.window - 1 + max_chunk)
        return min(self.group.pages_for(tokens) - shared, self.group.pages_for(span) + 1)

    def resume(self, position: Position, first: int, pages: list[Granule], ledger: Ledger) -> UnitCopy | None:
        """Share ``pages``, from page number ``first`` on; the last, when partly used, is copied into one of our own."""
        whole = self.spec.entries(position) // self.group.page_size - first
        ledger.share(self.group.id, pages[:whole])
        self.first, self.pages = first, pages[:whole]
        if whole == len(pages):
            return None
        self.pages.append(self.spares.pop())
        return UnitCopy(self.group.id, pages[whole], self.pages[-1])


class SequenceState:
    """The state of one sequence. ``position`` moves on commit only, and every step checks that it starts there."""

    def __init__(self, groups: tuple[StateGroup, ...]) -> None:
        self.position = Position(0)
        self.capacity = 0
        """Tokens that have a place in the pages of every group; no pages change hands until a sequence outgrows it."""
        self.runs = {g.id: PageRun(g) for g in groups if g.paged}
        self.slots: Units = {}
        self._slot_demand = {g.id: g.units_per_slot for g in groups if not g.paged}

    def admission_demand(self, tokens: int, max_chunk: int, position: Position = START) -> dict[GroupId, int]:
        """Everything that computing ``tokens`` tokens from ``position`` on takes."""
        pages = {id: run.reserve_for(tokens, max_chunk, position) for id, run in self.runs.items()}
        return {**pages, **self._slot_demand}

    def admit(self, units: Units) -> None:
        for group, run in self.runs.items():
            run.spares.extend(units.pop(group))
        self.slots = units

    def resume(
        self, position: Position, pages: dict[GroupId, list[Granule]], checkpoint: Checkpoint | None, ledger: Ledger
    ) -> list[UnitCopy]:
        """Go on from ``position``: returns the copies without which this state is not there yet.

        ``pages`` are those of full-attention groups by page number. Right after ``admit``.
        """
        copies: list[UnitCopy | None] = [self.runs[g].resume(position, 0, of, ledger) for g, of in pages.items()]
        if checkpoint is not None:
            for group, window in checkpoint.windows.items():
                copies.append(self.runs[group].resume(position, window.first, list(window.pages), ledger))
            for group, rows in checkpoint.slots.items():
                copies.extend(UnitCopy(group, old, new) for old, new in zip(rows, self.slots[group], strict=True))
        self.position = position
        return [copy for copy in copies if copy is not None]

    def growth_demand(self, tokens: int) -> Demand:
        """Pages to take so that the first ``tokens`` tokens have a place; empty most of the time."""
        wanted = ((group, run.missing(tokens)) for group, run in self.runs.items())
        return {group: pages for group, pages in wanted if pages}

    def grow(self, tokens: int, units: Units) -> None:
        for group, run in self.runs.items():
            run.extend(tokens, units.get(group, []))
        self.capacity = min((run.capacity for run in self.runs.values()), default=sys.maxsize)

    def advance(self, start: Position, count: int) -> None:
        """A step that consumed ``count`` tokens from ``start`` on is committed."""
        if start != self.position:
            raise StateBug(f"a step from position {start} is committed on a state at position {self.position}")
        self.position = Position(start + count)

    def pass_windows(self, position: Position, ledger: Ledger) -> None:
        for run in self.runs.values():
            run.pass_window(position, ledger)

    def owned(self) -> Units:
        return {**{group: run.pages + run.spares for group, run in self.runs.items()}, **self.slots}

    def release(self, ledger: Ledger) -> None:
        """Give everything back; the state is at position 0 and owns nothing afterwards."""
        for group, units in self.owned().items():
            ledger.give_back(group, units)
        for run in self.runs.values():
            run.first, run.pages, run.spares = 0, [], []
        self.slots = {}
        self.capacity = 0
        self.position = Position(0)
