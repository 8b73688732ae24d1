"""CASES 2, 6, 9, 20, 23, 29, 31, 32, 38: aborts, preemptions, delays, failed admissions, little memory, with reuse."""

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from plait_engine.engine import Engine
from plait_engine.state.poison import Poison
from plait_engine.state.resume_point import ResumePoint
from tests.engine.reuse.client import MODELS, Client
from tests.engine.reuse.test_property import play
from tests.engine.tiny import BUDGET, Load, ask, assert_same, books, greedy, oracle, prompt_of, tiny_engine

EACH = pytest.mark.parametrize("name", MODELS)
LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


@EACH
@LOOPS
@pytest.mark.parametrize("later", [0, 1])
def test_case_2_what_an_aborted_writer_left_is_what_its_steps_had_computed(
    name: str, overlap: bool, later: int
) -> None:
    for steps in range(1, 8):
        client, prompt = Client(name, overlap=overlap, interval=5), prompt_of(70, seed=steps)
        first = client.request(prompt)
        client.load.add(first)
        for _ in range(steps):
            client.step()
        if later:  # The same prompt one step later, while the writer still runs.
            second = client.request(prompt)
            client.load.add(second)
            client.step()
        computed = client.engine.steps * BUDGET
        client.engine.abort(first.id)
        assert client.match(prompt).known <= computed
        if later:
            client.finish()
            client.compare(second)
        else:
            assert client.ask(prompt) <= computed


@EACH
@LOOPS
def test_case_2_preempted_in_the_same_pass(name: str, overlap: bool) -> None:
    client, prompt = Client(name, overlap=overlap, interval=1000), prompt_of(70, seed=1)
    first, second = client.request(prompt), client.request(prompt)
    client.load.add(first)
    for _ in range(3):
        client.step()
    while any(sequence.in_flight for sequence in client.engine.scheduler.running):
        client.engine._overlap = False
        client.engine._launched, before = None, client.engine._launched
        assert before is not None
        client.engine._commit(before)
    client.engine._overlap = overlap
    client.engine.scheduler._preempt(client.engine.scheduler.running[0])
    client.load.add(second)
    client.finish()
    client.compare(first, second)
    assert client.engine.counters()["plait_preemptions_total"]["outcome=restored"] == 1


@EACH
def test_case_6_a_resume_point_without_its_state_is_none(name: str) -> None:
    client, prompt = Client(name), prompt_of(40, seed=1)
    client.ask(prompt)
    for expected in (32, 16, 0):
        point = client.match(prompt).best
        assert point is not None
        assert point.checkpoint is not None
        checkpoint = point.checkpoint
        for group, units in checkpoint.owned().items():
            client.engine.ledger.give_back(group, units)
        checkpoint.slots, checkpoint.windows = {}, {}
        before = client.counted("plait_state_restore_failures_total")
        following = (*prompt[: max(point.position + 1, 17)], expected + 3)
        assert client.ask(following, max_tokens=1) == expected
        assert client.counted("plait_state_restore_failures_total") == before + 1
        prompt = prompt[: expected + 1]


class Stream:
    """Runs forwards one after the other in a thread of its own, late: as a device does, only slower."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._forward, self._rng = engine.runner._forward, rng
        self._pool = ThreadPoolExecutor(1)
        self.late = 0
        engine.runner._forward = self.forward  # type: ignore[method-assign]

    def forward(self, plan: Any, built: Any, *more: Any) -> Any:
        future: Future[Any] = self._pool.submit(self._delayed, plan, built, *more)
        self.late += not future.done()
        return (Later(future), []) if built.sampled else future.result()

    def _delayed(self, *arguments: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(self._rng.random() * 0.002)
        return self._forward(*arguments)

    def close(self) -> None:
        self._pool.shutdown()


class Later:
    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future.result()[0], name)


@pytest.mark.parametrize("name", ["braid", "gemma3"])
def test_case_9_a_checkpoint_is_of_the_step_that_its_state_is_of(name: str) -> None:
    client, rng = Client(name, interval=5), random.Random(9)
    stream = Stream(client.engine, rng)
    published: list[bool] = []
    publish = client.engine.scheduler.cache.publish

    def watched(sequence: Any, checkpoint: Any, receipt: Any) -> None:
        ends = checkpoint.position == sequence.state.position
        published.append(ends or checkpoint.position <= sequence.state.position)
        publish(sequence, checkpoint, receipt)
        assert checkpoint.receipt == client.engine.steps

    client.engine.scheduler.cache.publish = watched  # type: ignore[method-assign]
    start: tuple[int, ...] = ()
    while len(published) < 300:
        prompt = (start + prompt_of(rng.randrange(1, 30), seed=len(published)))[:60]
        client.ask(prompt, max_tokens=rng.choice((1, 3, 6)))
        start = prompt + client.reply if rng.random() < 0.7 else ()
    stream.close()
    assert all(published)
    assert stream.late > 50


@EACH
def test_case_20_caching_costs_no_step_and_no_concurrency(name: str) -> None:
    figures = []
    for reuse in (False, True):
        engine = tiny_engine(name, reuse=reuse, max_seqs=6)
        load, most = Load(engine), 0
        load.add(*(ask(f"r{i}", prompt_of(20 + i % 7, seed=i), greedy(5)) for i in range(32)))
        while not engine.idle:
            load.step()
            most = max(most, len(engine.scheduler.running))
        figures.append((most, engine.steps))
    assert figures[0] == figures[1]


@pytest.mark.parametrize("name", ["granite", "gemma3"])
def test_case_23_five_hundred_turns_stay_within_the_arena(name: str) -> None:
    client = Client(name, slabs=60, interval=8)
    history: tuple[int, ...] = ()
    for turn in range(500):
        history = (history + prompt_of(4, seed=turn))[-60:] if len(history) < 60 else prompt_of(4, seed=turn)
        request = client.request(history, max_tokens=1)
        client.load.add(request)
        client.finish()
        gauges = client.engine.gauges()
        assert sum(gauges["plait_arena_bytes"].values()) == client.engine.ledger.arena.n_bytes
    assert client.counted("plait_evictions_total") > 100
    assert client.engine.gauges()["plait_checkpoints"]["tier=arena"] < 100
    client.compare(request)


@pytest.mark.parametrize("most", [1, 4, 16])
def test_case_29_the_same_load_five_times(most: int) -> None:
    client = Client("braid", max_seqs=most)
    for _ in range(5):
        requests = [client.request(prompt_of(15, seed=i % 3) + prompt_of(i, seed=i)) for i in range(8)]
        client.load.add(*requests)
        client.finish()
        client.compare(*requests)


@EACH
def test_case_31_a_thousand_failed_admissions_leave_nothing_behind(name: str) -> None:
    client = Client(name)
    prompt = prompt_of(30, seed=1)
    client.ask(prompt)
    cache, load = client.engine.scheduler.cache, client.load
    taken = {group: dict(pool.taken) for group, pool in client.engine.ledger.pools.items()}
    request = client.request(prompt + prompt_of(3, seed=2))
    load.add(request)
    real, cache.ledger.take = cache.ledger.take, lambda *_, **__: None  # type: ignore[method-assign]
    make_room, cache.evictor.make_room = cache.evictor.make_room, lambda _: False  # type: ignore[method-assign]
    sequence = client.engine.scheduler.waiting.first(1)[0]
    for _ in range(1000):
        assert not cache.admit(sequence, cache.match(sequence), BUDGET)
    assert cache.tree.open_leases == 0
    client.engine.abort(request.id)
    cache.ledger.take, cache.evictor.make_room = real, make_room  # type: ignore[method-assign]
    assert {group: dict(pool.taken) for group, pool in client.engine.ledger.pools.items()} == taken
    assert not any(node.leases for node in cache.tree.nodes())
    books(client.engine)
    assert client.ask(prompt + prompt_of(3, seed=2)) >= 29


@EACH
@LOOPS
def test_case_32_ten_requests_three_rows_and_everything_cached_is_pinned(name: str, overlap: bool) -> None:
    engine = tiny_engine(name, reuse=True, max_seqs=3, overlap=overlap, interval=1000)
    load, tree = Load(engine), engine.scheduler.cache.tree
    requests = [ask(f"r{i}", prompt_of(20, seed=i), greedy(6)) for i in range(10)]
    load.add(*requests)
    while not engine.idle:
        load.step()
        for node in list(tree.nodes()):
            if node.checkpoint is not None and sum(n.pinned for n in tree.nodes()) < 3:
                tree.pin(ResumePoint(node.checkpoint.position, node, node.checkpoint))
    for request in requests:
        assert_same(load.answers[request.id, 0], oracle(name, request)[0])
    books(engine)


@EACH
@LOOPS
@pytest.mark.parametrize("hit", [False, True])
def test_case_38_aborted_at_any_chunk(name: str, overlap: bool, hit: bool) -> None:
    client, prompt = Client(name, overlap=overlap, interval=5), prompt_of(64, seed=1)
    if hit:
        client.ask(prompt[:20], max_tokens=1)
    for steps in range(8):
        request = client.request(prompt[:20] + prompt_of(44, seed=100 + steps))
        client.load.add(request)
        for _ in range(steps):
            client.step()
        client.engine.abort(request.id)
        client.finish()
        assert client.engine.scheduler.cache.tree.open_leases == 0
    client.ask(prompt)


def test_a_chunk_that_lacks_pages_takes_none_from_who_is_planned_already() -> None:
    world = play("gemma3", 50420, 40, overlap=False, slabs=15, poison=Poison.NAN)
    assert not world.asked
