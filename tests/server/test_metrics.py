"""The metrics page, and that it can do no harm."""

import logging
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from plait_engine.client import EngineStats
from plait_server.metrics import Metrics
from tests.server.conftest import front_of
from tests.server.fake_engine import FakeEngine

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(client: httpx.AsyncClient) -> Samples:
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


async def test_requests_and_tokens_are_counted(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post("/v1/completions", json={"prompt": [50] * 5, "max_tokens": 4, "n": 3})
    await client.post("/v1/completions", json={"prompt": [50] * 2, "max_tokens": 1, "stream": True})
    samples = await scrape(client)
    assert value(samples, "plait_prompt_tokens_total") == 7
    assert value(samples, "plait_generated_tokens_total") == 13
    assert value(samples, "plait_time_to_first_token_seconds_count") == 2
    assert value(samples, "plait_inter_token_seconds_count") == 9
    assert value(samples, "plait_request_seconds_count") == 2
    assert value(samples, "plait_queue_limit") == engine.info.max_queue
    assert value(samples, "plait_engine_up") == value(samples, "plait_ready") == 1


async def test_tokens_behind_a_stop_string_are_not_counted(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.tokens_per_step = 4
    answer = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 8})
    text = answer.json()["choices"][0]["text"]
    await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 8, "stop": text[1]})
    assert value(await scrape(client), "plait_generated_tokens_total") == 10


async def test_refusals_carry_the_code_of_the_error(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post("/v1/completions", json={"prompt": ""})
    await client.post("/v1/completions", json={"prompt": "x", "n": 0})
    await client.post("/v1/completions", json={"prompt": "x", "zzz": 0})
    await client.post("/v1/completions", json={"prompt": "x", "model": "zzz"})
    engine.full = True
    await client.post("/v1/completions", json={"prompt": "x"})
    samples = await scrape(client)
    reasons = {dict(labels)["reason"]: v for (name, labels), v in samples.items() if name == "plait_refused_total"}
    assert reasons == {"invalid_value": 2, "unknown_parameter": 1, "model_not_found": 1, "queue_full": 1}
    assert not any(name == "plait_aborted_total" and count for (name, _), count in samples.items())


async def test_engine_failures_are_aborts(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.error_at_step = 1
    for stream in (True, False):
        await client.post("/v1/completions", json={"prompt": "x", "stream": stream})
    samples = await scrape(client)
    assert value(samples, "plait_aborted_total", reason="engine") == 2
    assert value(samples, "plait_request_seconds_count") == 0


async def test_the_engine_s_figures_are_shown_under_its_names(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.current = EngineStats(
        running=3,
        waiting=5,
        gauges={"plait_arena_bytes": {"use=running": 10.0, "use=free": 20.0}, "plait_new": {"": 2.0}},
        counters={"plait_preemptions_total": {"outcome=recomputed": 4.0}, "plait_other_total": {"a=b,c=d": 1.0}},
        histograms={"plait_step_seconds": {"phase=wait": [1.0, 2.0, 5.0, 0.25]}},
        bounds={"plait_step_seconds": [0.1, 1.0]},
    )
    samples = await scrape(client)
    assert value(samples, "plait_requests", state="running") == 3
    assert value(samples, "plait_requests", state="waiting") == 5
    assert value(samples, "plait_arena_bytes", use="free") == 20
    assert value(samples, "plait_new") == 2
    assert value(samples, "plait_preemptions_total", outcome="recomputed") == 4
    assert value(samples, "plait_other_total", a="b", c="d") == 1
    for edge, count in (("0.1", 1), ("1.0", 2), ("+Inf", 5)):
        assert value(samples, "plait_step_seconds_bucket", le=edge, phase="wait") == count
    assert value(samples, "plait_step_seconds_sum", phase="wait") == 0.25


async def test_an_engine_may_give_a_name_that_is_ours_without_breaking_the_page(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.current = EngineStats(
        gauges={"plait_requests": {"state=running": 7.0}}, counters={"plait_refused_total": {}}
    )
    text = (await client.get("/metrics")).text
    assert text.count("# TYPE plait_requests ") == 1
    assert text.count("# TYPE plait_refused_total ") == 1


async def test_without_an_engine_old_figures_are_not_repeated(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.current = EngineStats(running=3)
    assert value(await scrape(client), "plait_requests", state="running") == 3
    engine.kill()
    samples = await scrape(client)
    assert ("plait_requests", (("state", "running"),)) not in samples
    assert value(samples, "plait_engine_up") == value(samples, "plait_ready") == 0


async def test_every_family_has_a_help_text_and_our_prefix(client: httpx.AsyncClient) -> None:
    families = list(text_string_to_metric_families((await client.get("/metrics")).text))
    assert len(families) > 15
    for family in families:
        assert family.name.startswith("plait_")
        assert family.documentation


@pytest.mark.parametrize("stream", [True, False])
async def test_metrics_that_raise_do_not_reach_a_request(
    client: httpx.AsyncClient, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("metrics are broken")

    metrics = front_of(client).metrics
    for name in ("first_token", "inter_token", "request_seconds"):
        getattr(metrics, name).observe = broken
    for name in ("prompt_tokens", "generated_tokens"):
        getattr(metrics, name).inc = broken
    for name in ("refused_total", "aborted_total"):
        getattr(metrics, name).labels = broken
    with caplog.at_level(logging.ERROR):
        good = await client.post("/v1/completions", json={"prompt": "x", "stream": stream})
        bad = await client.post("/v1/completions", json={"prompt": "", "stream": stream})
    assert (good.status_code, bad.status_code) == (200, 400)
    assert "error" not in good.text


def test_a_broken_metric_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.queue_limit.set = None  # type: ignore[method-assign, assignment]
    for _ in range(5):
        metrics.state(up=True, ready=True, queue_limit=1, stats=None)
    assert caplog.text.count("requests are not affected") <= 1


def test_two_applications_do_not_share_counts() -> None:
    first, second = Metrics(), Metrics()
    first.refused("queue_full")
    assert b'reason="queue_full"' in first.exposition()
    assert b'reason="queue_full"' not in second.exposition()
