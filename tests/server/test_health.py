"""Health, readiness and admission say the same thing, and the truth."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from plait_engine.client import EngineStats
from plait_server.app import create_app
from plait_server.config import ServerConfig
from plait_server.text.model_text import ModelText
from tests.server.conftest import front_of
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer

PROMPT = {"prompt": "hello"}


@asynccontextmanager
async def started(engine: FakeEngine, text: ModelText, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Without waiting for the engine."""
    app = create_app(ServerConfig(**options), engine, text)
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://plait") as client:
            yield client


async def statuses(client: httpx.AsyncClient) -> tuple[int, int, int]:
    """Of /health, /ready, and a request."""
    answers = [
        await client.get("/health"),
        await client.get("/ready"),
        await client.post("/v1/completions", json=PROMPT),
    ]
    return answers[0].status_code, answers[1].status_code, answers[2].status_code


async def test_a_serving_server_is_live_and_ready(client: httpx.AsyncClient) -> None:
    assert await statuses(client) == (200, 200, 200)
    assert (await client.get("/ready")).json() == {"status": "ok"}
    assert (await client.get("/version")).json().keys() == {"version"}


async def test_probes_may_ask_for_the_head_alone(engine: FakeEngine, text: ModelText) -> None:
    engine.loaded.clear()
    async with started(engine, text) as client:
        assert [(await client.head(path)).status_code for path in ("/health", "/ready")] == [200, 503]


async def test_a_loading_server_is_live_but_not_ready(engine: FakeEngine, text: ModelText) -> None:
    engine.loaded.clear()
    async with started(engine, text) as client:
        assert await statuses(client) == (200, 503, 503)
        refusal = await client.post("/v1/completions", json=PROMPT)
        assert refusal.json()["error"]["code"] == "loading"
        assert int(refusal.headers["retry-after"]) < 120
        assert (await client.get("/v1/models")).status_code == 503
        assert (await client.get("/metrics")).status_code == 200
        engine.loaded.set()
        await asyncio.sleep(0.01)
        assert await statuses(client) == (200, 200, 200)


async def test_a_server_whose_engine_cannot_start_is_neither_and_says_why(engine: FakeEngine, text: ModelText) -> None:
    engine.start_failure = "tensor lm_head is missing"
    async with started(engine, text) as client:
        await asyncio.sleep(0.01)
        assert await statuses(client) == (503, 503, 503)
        assert "lm_head" in (await client.get("/health")).text


async def test_after_the_engine_s_death_nothing_is_well_and_health_asks_for_a_restart(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    assert await statuses(client) == (200, 200, 200)
    engine.kill()
    assert await statuses(client) == (503, 503, 503)
    refusal = await client.post("/v1/completions", json=PROMPT)
    assert refusal.json()["error"]["code"] == "engine_dead"


async def test_a_blocked_step_is_not_ready_and_stays_live_until_the_heartbeat_is_too_old(
    engine: FakeEngine, text: ModelText
) -> None:
    async with started(
        engine, text, heartbeat_limit_seconds=0.6, answer_limit_seconds=0.15, probe_seconds=0.05
    ) as client:
        assert (await client.get("/ready")).status_code == 200
        engine.go.clear()
        waiting = asyncio.create_task(client.post("/v1/completions", json=PROMPT))
        assert (await client.get("/ready")).status_code == 200
        await asyncio.sleep(0.2)
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        await asyncio.sleep(0.5)
        assert (await client.get("/health")).status_code == 503
        engine.go.set()
        assert (await waiting).status_code == 200
        assert [(await client.get(path)).status_code for path in ("/health", "/ready")] == [200, 200]


async def test_an_engine_that_says_it_is_stuck_is_not_ready_but_live(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.current = EngineStats(stuck=True, running=1, waiting=3)
    assert (await client.get("/ready")).status_code == 503
    assert (await client.get("/health")).status_code == 200
    engine.current = EngineStats()
    assert (await client.get("/ready")).status_code == 200


async def test_an_old_heartbeat_is_not_live(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    front_of(client).health._heartbeat -= 1_000
    engine.current = EngineStats(heartbeat_seconds=500)
    assert (await client.get("/health")).status_code == 503
    engine.current = EngineStats(heartbeat_seconds=1)
    assert (await client.get("/health")).status_code == 200


async def test_a_long_step_fails_no_probe_and_does_not_hold_one_up(
    engine: FakeEngine, text: ModelText, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> EngineStats:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(engine, "stats", never)
    async with started(engine, text, probe_seconds=0.05) as client:
        await asyncio.sleep(0)
        async with asyncio.timeout(0.8):  # probes give up after a second
            for path in ("/ready", "/health", "/ready"):
                assert (await client.get(path)).status_code == 200


async def test_the_engine_is_asked_even_when_no_probe_asks(engine: FakeEngine, text: ModelText) -> None:
    async with started(engine, text, poll_seconds=0.01, answer_limit_seconds=0.1) as client:
        await asyncio.sleep(0.3)
        front = front_of(client)
        assert front.health.obstacle() is None
        engine.current = EngineStats(stuck=True)
        await asyncio.sleep(0.1)
        assert front.health.obstacle() is not None


@pytest.mark.parametrize("stream", [True, False])
def test_requests_that_wait_when_the_engine_dies_get_an_error_at_once(live: LiveServer, stream: bool) -> None:
    live.call(live.engine.go.clear)
    answers: list[httpx.Response] = []

    def ask() -> None:
        with live.client() as client:
            answers.append(client.post("/v1/completions", json={**PROMPT, "stream": stream}))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    live.wait(lambda: live.engine.sequences_running == 4)
    live.call(live.engine.kill)
    for thread in threads:
        thread.join(timeout=5)
    assert [answer.status_code for answer in answers] == [500] * 4
    assert {answer.headers["x-should-retry"] for answer in answers} == {"false"}
    with live.client() as client:
        assert [client.get(path).status_code for path in ("/health", "/ready")] == [503, 503]


async def test_the_engine_is_shut_down_with_the_application(engine: FakeEngine, text: ModelText) -> None:
    async with started(engine, text):
        assert not engine.shut_down
    assert engine.shut_down


async def test_deep_health_generates_a_token(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await client.get("/health/deep")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    (request,) = engine.requests
    assert (request.sampling.max_tokens, len(request.prompt)) == (1, 1)


async def test_deep_health_says_what_is_wrong(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.error_at_step = 0
    answer = await client.get("/health/deep")
    assert (answer.status_code, answer.json()["status"]) == (503, "a kernel failed")
    engine.error_at_step = None
    engine.step_seconds = 1
    monkeypatch.setattr("plait_server.routes.health.DEEP_SECONDS", 0.05)
    answer = await client.get("/health/deep")
    assert (answer.status_code, answer.json()["status"]) == (503, "no token within 0.05 seconds")
    assert engine.sequences_running == 0
