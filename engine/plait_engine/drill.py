"""``plait drill``: break each kind of cached state in a live engine, and see that nobody gets a wrong answer from it.

A prompt is computed cold, cached, and its resume point broken in one way; the same prompt again must get the cold
answer, by recomputing from further back, count exactly one failed restore under the right labels, and leave the books
in order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from plait_engine.build import build_engine
from plait_engine.config import EngineConfig
from plait_engine.drill_subject import PROMPT, Subject
from plait_engine.engine import Engine
from plait_engine.state.checkpoint import WindowPages
from plait_engine.state.poison import Poison
from plait_engine.state.pools import StateBug
from plait_engine.state.spec import Position, StateGroup
from plait_engine.state.tiers.slow import NEVER
from plait_engine.verify import TOLERANCE

FAILURES = "plait_state_restore_failures_total"


@dataclass(frozen=True)
class Outcome:
    """What became of one break. ``state`` is empty where the model has no such state, and then nothing was done."""

    broken: str
    state: str
    passed: bool
    cached: int = 0
    """Tokens that were still skipped."""
    counted: str = ""
    largest_difference: float = 0.0
    """Of logits, relative to the largest one of the cold answer."""
    remark: str = ""


@dataclass(frozen=True)
class Drill:
    """``reason`` is the label under which the failure must be counted. ``on`` says which groups it can be done to."""

    broken: str
    reason: str
    on: Callable[[StateGroup], bool]
    apply: Callable[[Subject, StateGroup], None]
    whole: bool = False
    """Said of the checkpoint as a whole: counted for its first group."""


def drop_tail_page(subject: Subject, group: StateGroup) -> None:
    node = subject.point.node
    node.births[group.id].pop()
    subject.ledger.give_back(group.id, [node.pages[group.id].pop()])


def drop_window_page(subject: Subject, group: StateGroup) -> None:
    checkpoint = subject.checkpoint
    window = checkpoint.windows[group.id]
    checkpoint.windows[group.id] = WindowPages(window.first + 1, window.pages[1:])
    del checkpoint.births[group.id][0]
    subject.ledger.give_back(group.id, window.pages[:1])


def drop_rows(subject: Subject, group: StateGroup) -> None:
    checkpoint = subject.checkpoint
    subject.ledger.give_back(group.id, checkpoint.slots.pop(group.id))


def flip_byte(subject: Subject, group: StateGroup) -> None:
    rows = subject.ledger.arena.units(group.unit_bytes)
    rows[subject.checkpoint.slots[group.id][-1], 5] ^= 1


def swap_slots(subject: Subject, group: StateGroup) -> None:
    """With those of the resume point further back."""
    rows, tree = subject.ledger.arena.units(group.unit_bytes), subject.cache.tree
    match = tree.match(f"\0{subject.salt}", torch.tensor(subject.prompt[:-2], dtype=torch.int32).numpy())
    assert match.best is not None
    assert match.best.checkpoint is not None
    here, there = subject.checkpoint.slots[group.id], match.best.checkpoint.slots[group.id]
    rows[here], rows[there] = rows[there].clone(), rows[here].clone()
    tree.drop_checkpoint(match.best.node)


def move_stamp(subject: Subject, _: StateGroup) -> None:
    subject.checkpoint.position = Position(subject.checkpoint.position - 1)


def change_layout(subject: Subject, _: StateGroup) -> None:
    subject.checkpoint.fingerprint = "another model"


def give_away(subject: Subject, group: StateGroup) -> None:
    if group.full:
        subject.give_away(group.id, subject.point.node.pages[group.id][-1])
    else:
        subject.give_away(group.id, subject.checkpoint.owned()[group.id][-1])


def fail_tier(subject: Subject, _: StateGroup) -> None:
    subject.offload()[0].failing = True


def lose_in_tier(subject: Subject, group: StateGroup) -> None:
    del subject.offload()[1][group.id]


def delay_tier(subject: Subject, _: StateGroup) -> None:
    subject.offload()[0].polls = NEVER
    subject.cache.fetches.patience_seconds = 0.02


def flip_in_tier(subject: Subject, group: StateGroup) -> None:
    subject.offload()[1][group.id][-1, 5] ^= 1


def _full(group: StateGroup) -> bool:
    return group.full


def _window(group: StateGroup) -> bool:
    return group.paged and not group.full


def _beside_pages(group: StateGroup) -> bool:
    return not group.full


def _any(_: StateGroup) -> bool:
    return True


def _slot(group: StateGroup) -> bool:
    return not group.paged


DRILLS = (
    Drill("rows of the checkpoint dropped", "slot_missing", _slot, drop_rows),
    Drill("page of the window dropped", "pages_missing", _window, drop_window_page),
    Drill("last page dropped", "pages_missing", _full, drop_tail_page),
    Drill("byte of the state flipped", "checksum", _slot, flip_byte),
    Drill("two slots swapped", "checksum", _slot, swap_slots),
    Drill("position stamp moved", "position", _beside_pages, move_stamp, whole=True),
    Drill("layout fingerprint changed", "layout", _beside_pages, change_layout, whole=True),
    Drill("freed under a lease, and taken by others", "stale", _any, give_away),
    Drill("tier fails", "tier_failed", _beside_pages, fail_tier, whole=True),
    Drill("tier has lost the state", "tier_failed", _beside_pages, lose_in_tier),
    Drill("tier is late", "tier_timeout", _beside_pages, delay_tier, whole=True),
    Drill("byte flipped in the tier", "checksum", _beside_pages, flip_in_tier),
)


def drill(config: EngineConfig) -> list[Outcome]:
    """Build the engine as it would serve, with freed memory poisoned, and do every drill on every kind of state."""
    engine = build_engine(replace(config, prefix_reuse=True, audit_rate=0.0, poison=Poison.NAN)).engine
    return list(drill_engine(engine))


def drill_engine(engine: Engine) -> Iterator[Outcome]:
    yield whole(engine)
    if any(map(_beside_pages, engine.ledger.groups)):
        yield whole(engine, Subject.offload, "nothing, with the state in a tier")
    for each in DRILLS:
        groups = [group for group in engine.ledger.groups if each.on(group)]
        if not groups:
            yield Outcome(each.broken, "", passed=True, remark="this model has no such state")
        for group in groups[:1] if each.whole else groups:
            yield perform(engine, each, group)


def whole(engine: Engine, first: Callable[[Subject], object] = lambda _: None, name: str = "nothing") -> Outcome:
    """The counterpart: nothing is broken, and then the prompt is skipped but for its last token."""
    subject = Subject(engine, name)
    cold = subject.prepare()
    before = failures(engine)
    first(subject)
    warm, cached = subject.ask(subject.prompt, subject.salt)
    subject.tidy()
    difference = relative_difference(engine, cold, warm)
    hit = cached == PROMPT - 1
    good = hit and difference is not None and failures(engine) == before
    return Outcome(name, "all", good, cached, "", difference or 0.0, "" if hit else "the prompt was not cached")


def perform(engine: Engine, each: Drill, group: StateGroup) -> Outcome:
    subject = Subject(engine, f"{each.broken}, {group.id}")
    cold = subject.prepare()
    before = failures(engine)
    each.apply(subject, group)
    warm, cached = subject.ask(subject.prompt, subject.salt)
    subject.tidy()
    difference = relative_difference(engine, cold, warm)
    counted = {labels: n - before[labels] for labels, n in failures(engine).items() if n > before[labels]}
    remarks = []
    if difference is None:
        remarks.append("the answer is wrong")
    if counted != {f"state={group.spec.kind},reason={each.reason}": 1}:
        remarks.append(f"counted {counted or 'nothing'}")
    try:
        engine.check()
    except StateBug as error:
        remarks.append(f"leak: {error}")
    labels = "; ".join(counted)
    return Outcome(each.broken, group.spec.kind, not remarks, cached, labels, difference or 0.0, "; ".join(remarks))


def failures(engine: Engine) -> defaultdict[str, float]:
    return defaultdict(float, engine.counters()[FAILURES])


def relative_difference(engine: Engine, cold: tuple[list[int], Tensor], warm: tuple[list[int], Tensor]) -> float | None:
    """Between logits, as far as both answers agree and one token more; None when it is more than rounding explains."""
    tolerance = TOLERANCE[next(engine.runner.model.parameters()).dtype]
    pairs = list(zip(cold[0], warm[0], strict=False))
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs) - 1) + 1
    a, b = cold[1][:same], warm[1][:same]
    if len(warm[0]) != len(cold[0]) or not bool(b.isfinite().all()):
        return None
    difference = float((a - b).abs().max() / a.abs().max())
    return difference if difference <= tolerance else None
