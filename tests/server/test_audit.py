"""The audit log: a line per request, whatever became of it, and never what was said."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from plait_server.app import create_app
from plait_server.auth.keys import digest_of
from plait_server.config import ServerConfig
from plait_server.text.model_text import ModelText
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import eventually

SECRET_TEXT = "do not write this down"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
async def client(engine: FakeEngine, text: ModelText, tmp_path: Path, log: Path) -> AsyncIterator[httpx.AsyncClient]:
    keys = tmp_path / "keys.yaml"
    keys.write_text(yaml.safe_dump([{"name": "laptop", "tenant": "red", "sha256": digest_of("key").hex()}]))
    config = ServerConfig(served_names=("fake",), keys=keys, audit_log=log, max_body_bytes=10_000)
    app = create_app(config, engine, text)
    async with app.router.lifespan_context(app):
        await app.state.front.health.settled.wait()
        headers = {"authorization": "Bearer key"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://plait", headers=headers
        ) as made:
            yield made


def lines(log: Path) -> list[dict[str, Any]]:
    text = log.read_text()
    assert SECRET_TEXT not in text
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_served_request_is_one_line(
    client: httpx.AsyncClient, engine: FakeEngine, log: Path, stream: bool
) -> None:
    engine.cached_tokens = 3
    body = {"prompt": SECRET_TEXT, "max_tokens": 5, "stream": stream, "model": "fake"}
    answer = await client.post("/v1/completions", json=body, headers={"x-request-id": "mine-1"})
    assert answer.status_code == 200
    (line,) = lines(log)
    assert line.pop("time").startswith("20")
    assert line.pop("seconds") >= 0
    assert line.pop("prompt_tokens") > 5
    assert line == {
        "request_id": "mine-1",
        "key": "laptop",
        "tenant": "red",
        "route": "POST /v1/completions",
        "model": "fake",
        "status": 200,
        "reason": None,
        "completion_tokens": 5,
        "cached_tokens": 3,
    }


async def test_a_refused_request_says_why(client: httpx.AsyncClient, engine: FakeEngine, log: Path) -> None:
    body: dict[str, Any] = {"prompt": SECRET_TEXT}
    await client.post("/v1/completions", json=body, headers={"authorization": "Bearer wrong"})
    await client.post("/v1/completions", json=body | {"n": -1, SECRET_TEXT: 1})
    await client.post("/v1/completions", json=body | {"model": "other"})
    await client.post("/v1/completions", json=body | {"user": "x" * 20_000})
    await client.get("/v1/nothing")
    engine.full = True
    await client.post("/v1/completions", json=body)
    found = lines(log)
    assert [(line["status"], line["reason"]) for line in found] == [
        (401, "invalid_api_key"),
        (400, "invalid_value"),
        (404, "model_not_found"),
        (413, "request_too_large"),
        (404, "not_found"),
        (503, "queue_full"),
    ]
    assert [line["key"] for line in found] == [None, "laptop", "laptop", None, "laptop", "laptop"]


async def test_an_error_in_mid_stream_is_in_the_line(client: httpx.AsyncClient, engine: FakeEngine, log: Path) -> None:
    engine.error_at_step = 2
    await client.post("/v1/completions", json={"prompt": SECRET_TEXT, "max_tokens": 5, "stream": True})
    (line,) = lines(log)
    assert (line["status"], line["reason"], line["completion_tokens"]) == (200, "engine_error", 2)


async def test_a_client_that_goes_away_is_in_the_log(client: httpx.AsyncClient, engine: FakeEngine, log: Path) -> None:
    engine.go.clear()
    task = asyncio.create_task(client.post("/v1/completions", json={"prompt": SECRET_TEXT}))
    await eventually(lambda: bool(engine.requests))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (line,) = lines(log)
    assert (line["status"], line["reason"]) == (None, "client_gone")


async def test_probes_are_not_logged(client: httpx.AsyncClient, log: Path) -> None:
    for path in ("/health", "/ready", "/version", "/metrics"):
        await client.get(path)
    assert lines(log) == []


async def test_a_log_that_was_moved_away_is_begun_anew(client: httpx.AsyncClient, log: Path) -> None:
    await client.get("/v1/models")
    old = log.rename(log.with_suffix(".1"))  # noqa: ASYNC240
    await client.get("/v1/models")
    assert len(lines(old)) == len(lines(log)) == 1


def test_a_log_that_cannot_be_written_is_known_at_start(text: ModelText, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        create_app(ServerConfig(audit_log=tmp_path / "no" / "log"), FakeEngine(), text)
