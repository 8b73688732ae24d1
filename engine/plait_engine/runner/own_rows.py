"""Rows of steps that are nobody's but own pages and slots as requests do, so that a step moves as many bytes as when it
serves; what lies there, and what they ask, is random."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

from plait_engine.request import Request
from plait_engine.runner.padding_rows import GREEDY
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.step_plan import Row
from plait_engine.sequence import Sequence
from plait_engine.state.addresses import addresses
from plait_engine.state.ledger import Demand, Ledger
from plait_engine.state.sequence_state import SequenceState
from plait_engine.state.spec import Granule, Position, StateGroup
from plait_kernels.tuning.op_call import fill


class OwnRows:
    """While nothing else runs: rows 0, 1, ... of the tables are taken again by each ``rows``."""

    def __init__(self, runner: ModelRunner, ledger: Ledger) -> None:
        self._runner, self._ledger = runner, ledger
        tables = runner.tables
        rng = random.Random(0)
        self._tokens = tuple(rng.randrange(runner.vocab_size) for _ in range(tables.longest + tables.padding_row))

    @contextmanager
    def rows(self, number: int, start: int, count: int) -> Iterator[list[Row]]:
        """``number`` sequences that have tokens ``[start, start + count)`` computed; ``start`` is halved until memory
        holds them, and there are none where it never does. They own nothing any more at the end."""
        while not self._ledger.can_take(self._demand(number, start, count)):
            if start == 0:
                yield []
                return
            start //= 2
        states = [self._state(start, count) for _ in range(number)]
        try:
            for group in self._runner.tables.groups:
                self._fill(group, [unit for state in states for unit in state.owned()[group.id]])
            yield [self._row(i, state, start, count) for i, state in enumerate(states)]
        finally:
            for state in states:
                state.release(self._ledger)

    def _demand(self, number: int, start: int, count: int) -> Demand:
        _, demand = self._empty(start, count)
        return {group: number * units for group, units in demand.items()}

    def _empty(self, start: int, count: int) -> tuple[SequenceState, Demand]:
        """A state at ``start``, and what it must be given to go on from there."""
        groups = self._runner.tables.groups
        state = SequenceState(groups)
        state.pass_windows(Position(start), self._ledger)
        slots = {group.id: group.units_per_slot for group in groups if not group.paged}
        return state, {**state.growth_demand(start + count), **slots}

    def _state(self, start: int, count: int) -> SequenceState:
        state, demand = self._empty(start, count)
        units = self._ledger.take(demand, fresh=False)
        assert units is not None
        state.slots = {group: units.pop(group) for group in tuple(units) if group not in state.runs}
        state.grow(start + count, units)
        return state

    def _fill(self, group: StateGroup, units: list[Granule]) -> None:
        arena, places = self._ledger.arena, addresses(units, self._runner.device)
        for index in range(len(group.layers) if group.paged else 1):
            for tensor in group.spec.tensors:
                fill(arena.view(group, index, tensor.name), places)

    def _row(self, number: int, state: SequenceState, start: int, count: int) -> Row:
        prompt = self._tokens[number : number + start + count]
        request = Request(id=f"own {number}", prompt=prompt, sampling=GREEDY)
        return Row(Sequence(request, 0, 0, state, row=number), Position(start), count, samples=True)
