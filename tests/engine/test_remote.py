"""The engine in its own process: every request ends, whatever happens to it, to its client or to the process."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC251 (a test may poll and block)

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from plait_engine import remote
from plait_engine.cache_order import CacheOrder, CacheVerb
from plait_engine.client import EngineDead, EngineError, QueueFull, RequestRefused
from plait_engine.config import EngineConfig, LoadFormat
from plait_engine.llm import LLM
from plait_engine.pin import PinOrder
from plait_engine.remote import RemoteEngine
from plait_engine.request import Delta, FinishReason
from tests.engine.tiny import Answer, ask, greedy, prompt_of, seeded, write_folder

pytestmark = pytest.mark.asyncio(loop_scope="module")
MAX_SEQS, MAX_QUEUE = 4, 20
HOUR = PinOrder(ttl_seconds=3600.0)
SETTINGS = {"page_size": 4, "max_batch_tokens": 16, "memory_bytes": 1 << 27, "load_format": LoadFormat.RANDOM}


def config_of(folder: Path, **more: Any) -> EngineConfig:
    settings: dict[str, Any] = {"max_seqs": MAX_SEQS, "max_queue": MAX_QUEUE, "threads": 1} | SETTINGS
    return EngineConfig(model=str(folder), **settings | more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), "granite", max_position_embeddings=20_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[RemoteEngine]:
    client = RemoteEngine(config_of(folder))
    await client.start()
    await client.wait_ready()
    yield client
    await client.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def mortal(folder: Path) -> AsyncIterator[RemoteEngine]:
    """An engine that the test may kill."""
    client = RemoteEngine(config_of(folder))
    await client.start()
    await client.wait_ready()
    yield client
    await client.shutdown()


async def collect(deltas: AsyncGenerator[list[Delta], None]) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    async for some in deltas:
        for delta in some:
            answers.setdefault(delta.index, Answer()).take(delta)
    return answers


async def at_rest(engine: RemoteEngine) -> None:
    """Nothing runs or waits any more."""
    async with asyncio.timeout(20):
        while (stats := await engine.stats()).running + stats.waiting:
            await asyncio.sleep(0.02)
    pages = stats.gauges["plait_pages"] | stats.gauges["plait_slots"]
    reserved = {"group=full_attention,use=running": 1.0, "group=mamba2,use=running": 3.0}
    assert {key: value for key, value in pages.items() if "running" in key} == reserved


async def test_answers_are_those_of_the_engine_in_this_process(engine: RemoteEngine, folder: Path) -> None:
    requests = [ask(f"a{i}", prompt_of(3 + 5 * i), seeded(8, seed=i)) for i in range(6)]
    answers = await asyncio.gather(*(collect(engine.submit(r)) for r in requests))
    local = LLM(str(folder), max_seqs=MAX_SEQS, **SETTINGS)
    expected = local.generate([r.prompt for r in requests], [r.sampling for r in requests])
    assert [answer[0].tokens for answer in answers] == [completion.token_ids for completion in expected]
    assert all(answer[0].finish is FinishReason.LENGTH for answer in answers)


async def test_pins_and_what_is_cached_go_through_messages(engine: RemoteEngine) -> None:
    prompt = prompt_of(40, seed=77)
    deltas = [d async for some in engine.submit(ask("pin", prompt, greedy(0), tenant="p", pin=HOUR)) for d in some]
    outcome = deltas[0].pin
    assert outcome is not None
    assert outcome.pin is not None
    assert outcome.pin.tokens == 39
    shown, theirs = await asyncio.gather(*(engine.cache_order(CacheOrder(tenant=t)) for t in ("p", "q")))
    assert [pin.id for pin in shown.pins] == [outcome.pin.id]
    assert shown.tokens >= 39
    assert (theirs.tokens, theirs.pins) == (0, ())
    with pytest.raises(RequestRefused, match="cannot be pinned"):
        await collect(engine.submit(ask("short", prompt_of(1), greedy(0), pin=HOUR)))
    off = await engine.cache_order(CacheOrder(tenant="p", verb=CacheVerb.UNPIN, pin=outcome.pin.id))
    assert off.pins == ()
    dropped = await engine.cache_order(CacheOrder(tenant="p", verb=CacheVerb.DROP))
    assert (dropped.tokens, dropped.dropped_tokens) == (0, shown.tokens)


async def test_an_idle_engine_lets_go_of_what_is_over(engine: RemoteEngine) -> None:
    await collect(engine.submit(ask("brief", prompt_of(30), greedy(0), tenant="t", pin=PinOrder(ttl_seconds=0.2))))
    async with asyncio.timeout(10):
        while (await engine.stats()).gauges["plait_pins"][""]:
            await asyncio.sleep(0.05)
    assert (await engine.stats()).counters["plait_pin_events_total"]["event=expired"] == 1


async def test_every_index_of_a_request_ends(engine: RemoteEngine) -> None:
    answers = await collect(engine.submit(ask("several", prompt_of(7), seeded(5, seed=1), n=3)))
    assert answers.keys() == {0, 1, 2}
    assert all(answer.finish is FinishReason.LENGTH and len(answer.tokens) == 5 for answer in answers.values())
    assert len({tuple(answer.tokens) for answer in answers.values()}) > 1


async def test_a_reader_that_leaves_early_stops_the_work(engine: RemoteEngine) -> None:
    async with aclosing(engine.submit(ask("gone", prompt_of(5), greedy(10_000), n=2))) as deltas:
        async for _ in deltas:
            break
    assert (await engine.stats()).running == 0  # at once, and not when all of the tokens are there
    await at_rest(engine)


async def test_a_cancelled_reader_stops_the_work(engine: RemoteEngine) -> None:
    """While its request is queued, and in its prompt."""
    tasks = [asyncio.create_task(collect(engine.submit(ask(f"c{i}", prompt_of(9000), greedy(9))))) for i in range(6)]
    while not (await engine.stats()).waiting:
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await at_rest(engine)


async def test_one_index_can_be_aborted_while_the_others_go_on(engine: RemoteEngine) -> None:
    answers: dict[int, Answer] = {}
    async for some in engine.submit(ask("part", prompt_of(5), greedy(40), n=3)):
        for delta in some:
            answers.setdefault(delta.index, Answer()).take(delta)
        if len(answers) == 3:
            engine.abort("part", 1)
    assert [answers[i].finish for i in range(3)] == [FinishReason.LENGTH, None, FinishReason.LENGTH]
    await at_rest(engine)


async def test_a_follower_may_abort_while_it_is_told_and_hears_of_the_end_once_and_last(engine: RemoteEngine) -> None:
    class Impatient:
        def __init__(self) -> None:
            self.heard: list[list[Delta] | None] = []
            self.over = asyncio.Event()

        def take(self, deltas: list[Delta]) -> None:
            self.heard.append(deltas)
            if len(self.heard) == 2:
                engine.abort("impatient")

        def end(self, error: EngineError | None) -> None:
            assert error is None
            self.heard.append(None)
            self.over.set()

    follower = Impatient()
    engine.follow(ask("impatient", prompt_of(5), greedy(10_000), n=2), follower)
    async with asyncio.timeout(10):
        await follower.over.wait()
    await at_rest(engine)
    assert [heard is None for heard in follower.heard] == [False, False, True]


async def test_an_abort_ends_the_deltas(engine: RemoteEngine) -> None:
    async with asyncio.timeout(10):
        async for _ in engine.submit(ask("aborted", prompt_of(5), greedy(10_000))):
            engine.abort("aborted")
    await at_rest(engine)


async def test_what_cannot_fit_is_refused_and_others_are_unharmed(engine: RemoteEngine) -> None:
    other = asyncio.create_task(collect(engine.submit(ask("other", prompt_of(5), greedy(30)))))
    with pytest.raises(RequestRefused, match="maximum context length"):
        await collect(engine.submit(ask("long", prompt_of(20_001), greedy(1))))
    with pytest.raises(RequestRefused, match="vocabulary"):
        await collect(engine.submit(ask("odd", [5, 10_000], greedy(1))))
    assert len((await other)[0].tokens) == 30


async def test_an_id_in_use_is_refused_and_free_again_afterwards(engine: RemoteEngine) -> None:
    first = asyncio.create_task(collect(engine.submit(ask("twin", prompt_of(5), greedy(30)))))
    await asyncio.sleep(0)
    with pytest.raises(RequestRefused, match="in use"):
        await collect(engine.submit(ask("twin", prompt_of(5), greedy(30))))
    assert len((await first)[0].tokens) == 30
    assert len((await collect(engine.submit(ask("twin", prompt_of(5), greedy(3)))))[0].tokens) == 3


async def test_five_thousand_requests_at_once_cost_the_engine_nothing_beyond_its_queue(engine: RemoteEngine) -> None:
    """CASES 35."""
    before = (await engine.stats()).counters["plait_prefix_lookup_tokens_total"][""]
    started = time.monotonic()

    async def one(i: int) -> float | None:
        try:
            await collect(engine.submit(ask(f"q{i}", prompt_of(5), greedy(4))))
        except QueueFull:
            return time.monotonic() - started
        return None

    refused = [seconds for seconds in await asyncio.gather(*map(one, range(5000))) if seconds is not None]
    assert len(refused) == 5000 - MAX_SEQS - MAX_QUEUE
    assert max(refused) < 2.0
    after = (await engine.stats()).counters["plait_prefix_lookup_tokens_total"][""]
    assert after - before == 5 * (MAX_SEQS + MAX_QUEUE)
    await at_rest(engine)


async def test_an_engine_that_was_idle_for_long_is_not_called_silent(engine: RemoteEngine) -> None:
    await engine.stats()
    await asyncio.sleep(1.5)
    stats = await engine.stats()
    assert stats.heartbeat_seconds < 1.0
    assert not stats.stuck


async def test_a_blocked_step_shows_and_the_engine_goes_on_when_it_ends(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 52: stopped in the middle of its work, with more queued."""
    monkeypatch.setattr(remote, "STATS_TIMEOUT_SECONDS", 0.3)
    tasks = [asyncio.create_task(collect(engine.submit(ask(f"b{i}", prompt_of(5), greedy(30))))) for i in range(8)]
    await asyncio.sleep(0.1)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(EngineDead, match="does not answer"):
                await engine.stats()
        assert engine.alive
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    assert all(len(answer[0].tokens) == 30 for answer in await asyncio.gather(*tasks))
    monkeypatch.undo()
    for _ in range(3):
        assert (await engine.stats()).heartbeat_seconds < 1.0
    await at_rest(engine)


async def test_a_killed_engine_ends_every_request_at_once(
    mortal: RemoteEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """CASES 52: those that run, that wait, and that come between the death and the moment it is noticed."""
    tasks = [asyncio.create_task(collect(mortal.submit(ask(f"k{i}", prompt_of(5), greedy(10_000))))) for i in range(8)]
    await asyncio.sleep(0.3)
    assert mortal.pid is not None
    os.kill(mortal.pid, signal.SIGKILL)
    time.sleep(0.2)  # The event loop is not told yet.
    killed = time.monotonic()
    late = [asyncio.create_task(collect(mortal.submit(ask(f"l{i}", prompt_of(5), greedy(9))))) for i in range(3)]
    late.append(asyncio.create_task(mortal.stats()))  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        results = await asyncio.gather(*tasks, *late, return_exceptions=True)
    assert all(isinstance(result, EngineDead) for result in results)
    assert time.monotonic() - killed < 1.0
    assert not mortal.alive
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "the engine has stopped: the engine process ended with code -9"
    ]
    for call in (collect(mortal.submit(ask("x", prompt_of(5)))), mortal.stats()):
        with pytest.raises(EngineDead, match="code -9"):
            await call


async def test_shutdown_ends_requests_and_leaves_no_child(
    mortal: RemoteEngine, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.create_task(collect(mortal.submit(ask("r", prompt_of(5), greedy(10_000)))))
    await asyncio.sleep(0.2)
    pid, child = mortal.pid, mortal._child
    assert pid is not None
    assert child is not None
    assert child.folder.exists()
    await asyncio.gather(mortal.shutdown(), mortal.shutdown())
    await mortal.shutdown()
    with pytest.raises(EngineDead, match="shut down"):
        await task
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert not psutil.pid_exists(pid)
    assert not child.folder.exists()


async def test_a_process_launched_early_is_the_one_that_start_listens_to(folder: Path) -> None:
    client = RemoteEngine(config_of(folder))
    client.launch()
    pid = client.pid
    client.launch()
    await client.start()
    await client.wait_ready()
    assert client.pid == pid is not None
    await client.shutdown()
    assert not psutil.pid_exists(pid)


async def test_a_process_launched_early_and_abandoned_leaves_nothing(folder: Path) -> None:
    client = RemoteEngine(config_of(folder))
    client.abandon()
    client.launch()
    pid, child = client.pid, client._child
    assert pid is not None
    assert child is not None
    client.abandon()
    assert not psutil.pid_exists(pid)
    assert not child.folder.exists()


async def test_shutdown_during_start_up_is_quick_and_leaves_no_child(folder: Path) -> None:
    for wait in (0.0, 0.5):
        client = RemoteEngine(config_of(folder))
        await client.start()
        await asyncio.sleep(wait)
        pid = client.pid
        assert pid is not None
        started = time.monotonic()
        await client.shutdown()
        assert time.monotonic() - started < 2.0
        assert not psutil.pid_exists(pid)
        with pytest.raises(EngineDead):
            await client.wait_ready()


async def test_an_engine_that_cannot_start_says_why(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    unknown = write_folder(tmp_path / "unknown", "granite", layer_types=["mamba", "wavelet", "attention", "mamba"])
    starts = {
        "no such folder": config_of(tmp_path / "nothing"),
        "cannot be read": config_of(tmp_path / "broken"),
        "wavelet": config_of(unknown),
        "holds no running sequence": config_of(folder, memory_bytes=1000),
        "safetensors": config_of(folder, load_format=LoadFormat.AUTO),
    }

    async def reason(config: EngineConfig) -> str:
        client = RemoteEngine(config)
        await client.start()
        try:
            await client.wait_ready()
        except EngineDead as error:
            assert not client.alive
            return str(error)
        finally:
            await client.shutdown()
        return "started"

    for part, config in starts.items():
        assert part in await reason(config)
    assert "Traceback" not in capfd.readouterr().err


async def test_a_listener_that_breaks_ends_everything_instead_of_hanging(folder: Path) -> None:
    def broken(_: str) -> None:
        raise OSError("the log is full")

    client = RemoteEngine(config_of(folder), progress=broken)
    await client.start()
    with pytest.raises(EngineDead, match="the log is full"):
        await client.wait_ready()
    pid = client.pid
    await client.shutdown()
    assert pid is not None
    assert not psutil.pid_exists(pid)


PARENT = """
import asyncio, sys, time
from plait_engine.config import EngineConfig, LoadFormat
from plait_engine.remote import RemoteEngine
async def main():
    engine = RemoteEngine(EngineConfig(model=sys.argv[1], load_format=LoadFormat.RANDOM, max_batch_tokens=16))
    await engine.start()
    print(engine.pid, flush=True)
    if sys.argv[2] == "ready":
        await engine.wait_ready()
    print("now", flush=True)
    time.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["starting", "ready"])
async def test_an_engine_whose_parent_was_killed_ends_itself(folder: Path, moment: str) -> None:
    command = [sys.executable, "-c", PARENT, str(folder), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = psutil.Process(int(parent.stdout.readline()))
            assert parent.stdout.readline() == "now\n"
        finally:
            parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone


LONG_START = """
import os, sys, time
from plait_engine.process import ends_with
with ends_with(int(sys.argv[1])):
    print(os.getpid(), flush=True)
    time.sleep(60)
"""
STARTER = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])"


async def test_a_start_that_takes_long_ends_when_its_parent_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER, LONG_START], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone


async def test_hits_are_audited_when_nobody_comes(folder: Path) -> None:
    engine = RemoteEngine(config_of(folder, audit_rate=1.0, max_model_len=200))
    await engine.start()
    await engine.wait_ready()
    try:
        prompt = prompt_of(30, seed=77)
        for id in ("a1", "a2"):
            await collect(engine.submit(ask(id, prompt, greedy(3))))
        async with asyncio.timeout(60):
            while not (await engine.stats()).counters["plait_hit_audits_total"]["result=match"]:
                await asyncio.sleep(0.05)
        assert (await engine.stats()).counters["plait_hit_audits_total"]["result=mismatch"] == 0
    finally:
        await engine.shutdown()
