"""Who gets in, and as whom: over every route, with keys that come, change and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi.routing import iter_route_contexts

from plait_server.app import create_app
from plait_server.auth.guard import OPEN
from plait_server.auth.keys import digest_of
from plait_server.config import ServerConfig
from plait_server.text.model_text import ModelText
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import eventually

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
BODY: dict[str, Any] = {"prompt": "Hello", "max_tokens": 4}


@pytest.fixture
def serve(engine: FakeEngine, text: ModelText) -> Serve:
    @asynccontextmanager
    async def serving(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(ServerConfig(served_names=("fake",), keys_seconds=0.01, **options), engine, text)
        async with app.router.lifespan_context(app):
            await app.state.front.health.settled.wait()
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://plait", timeout=20) as client:
                yield client

    return serving


def entry(secret: str, name: str, tenant: str = "t", **more: object) -> dict[str, object]:
    return {"name": name, "tenant": tenant, "sha256": digest_of(secret).hex(), **more}


def key_file(folder: Path, *entries: object) -> Path:
    (folder / "new.yaml").write_text(yaml.safe_dump(list(entries)))
    return (folder / "new.yaml").replace(folder / "keys.yaml")


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def complete(client: httpx.AsyncClient, secret: str, **more: Any) -> httpx.Response:
    return await client.post("/v1/completions", json=BODY | more, headers=bearer(secret))


def routes(client: httpx.AsyncClient) -> list[tuple[str, str]]:
    app = client._transport.app  # type: ignore[attr-defined]
    found = []
    for context in iter_route_contexts(app.routes):
        methods = sorted(context.methods or ["GET"])
        found += [(method, (context.path or "").replace("{name:path}", "x")) for method in methods]
    assert len(found) >= 14
    return found


async def test_every_route_but_probes_wants_a_key(serve: Serve) -> None:
    async with serve(api_key="secret", guard_metrics=True) as client:
        for method, path in [*routes(client), ("GET", "/no-such-path"), ("OPTIONS", "/v1/models")]:
            answer = await client.request(method, path)
            if path in OPEN:
                assert answer.status_code == 200, path
                continue
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                error = answer.json()["error"]
                assert error["type"] == "authentication_error"
                assert error["code"] == "missing_api_key"
            assert (await client.request(method, path, headers=bearer("secret"))).status_code != 401, path


async def test_of_two_keys_none_counts(serve: Serve) -> None:
    async with serve(api_key="secret") as client:
        for secrets in (("secret", "other"), ("other", "secret"), ("secret", "secret")):
            headers = [("authorization", f"Bearer {secret}") for secret in secrets]
            assert (await client.get("/v1/models", headers=headers)).status_code == 401
        assert (await client.get("/v1/models", headers=headers[:1])).status_code == 200


async def test_metrics_have_a_setting_of_their_own(serve: Serve) -> None:
    async with serve(api_key="secret") as client:
        assert (await client.get("/metrics")).status_code == 200
    async with serve(api_key="secret", guard_metrics=True) as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=bearer("secret"))).status_code == 200
    async with serve(guard_metrics=True) as client:
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "secret", "Basic secret", "Bearer wrong", "Bearer secret2", "Bearer sécret"]
)
async def test_anything_but_the_key_is_401(serve: Serve, engine: FakeEngine, header: str) -> None:
    async with serve(api_key="secret") as client:
        answer = await client.post("/v1/completions", json=BODY, headers={b"authorization": header.encode()})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] in ("missing_api_key", "invalid_api_key")
        assert not engine.requests
        assert (await complete(client, "secret")).status_code == 200


@pytest.mark.parametrize("path", ["//v1/models", "/v1/models/", "/health/../v1/models", "/HEALTH", "/health/"])
async def test_no_spelling_of_a_path_goes_round_the_guard(serve: Serve, path: str) -> None:
    async with serve(api_key="secret") as client:
        url = httpx.URL("http://plait").copy_with(raw_path=path.encode())
        assert (await client.get(url)).status_code == 401


async def test_without_keys_nothing_is_asked(serve: Serve, engine: FakeEngine) -> None:
    async with serve() as client:
        assert (await complete(client, "whatever")).status_code == 200
        assert engine.requests[0].tenant == ""


async def test_a_disabled_key_is_403(serve: Serve, tmp_path: Path) -> None:
    async with serve(keys=key_file(tmp_path, entry("a", "a", disabled=True))) as client:
        answer = await complete(client, "a")
        assert answer.status_code == 403
        assert answer.json()["error"]["type"] == "permission_error"
        assert answer.json()["error"]["code"] == "api_key_disabled"


async def test_the_tenant_comes_from_the_key_and_from_nowhere_else(
    serve: Serve, engine: FakeEngine, tmp_path: Path
) -> None:
    """CASES 53: what is cached for one tenant is under another prefix of the tree than what is cached for others."""
    file = key_file(tmp_path, entry("a1", "a1", "red"), entry("a2", "a2", "red"), entry("b", "b", "blue"))
    async with serve(keys=file) as client:
        for secret in ("a1", "a2", "b"):
            assert (await complete(client, secret, cache_salt="s", user="blue")).status_code == 200
        assert [request.tenant for request in engine.requests] == ["red", "red", "blue"]
        assert (await complete(client, "a1", tenant="blue")).status_code == 400


async def test_keys_change_while_the_server_runs_and_streams_go_on(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, entry("old", "k1"))
    async with serve(keys=file) as client:
        assert (await complete(client, "old")).status_code == 200
        key_file(tmp_path, entry("old", "k1"), entry("new", "k2"))
        await until(client, "new", 200)
        assert (await complete(client, "old")).status_code == 200
        key_file(tmp_path, entry("new", "k2"))
        await until(client, "old", 401)
        assert (await complete(client, "new")).status_code == 200


async def until(client: httpx.AsyncClient, secret: str, status: int) -> None:
    for _ in range(300):
        if (await complete(client, secret)).status_code == status:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never {status}")


async def test_requests_over_a_keys_limit_are_429_and_other_keys_are_not(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, entry("a", "a", requests_per_minute=2), entry("b", "b"))
    async with serve(keys=file) as client:
        answers = [await complete(client, "a") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30
        assert answers[2].json()["error"]["type"] == "rate_limit_error"
        assert (await complete(client, "b")).status_code == 200
        assert (await client.get("/v1/models", headers=bearer("a"))).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_over_a_keys_limit_are_429(serve: Serve, tmp_path: Path, stream: bool) -> None:
    async with serve(keys=key_file(tmp_path, entry("a", "a", tokens_per_minute=5))) as client:
        assert (await complete(client, "a", stream=stream)).status_code == 200
        answer = await complete(client, "a", stream=stream)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"


async def test_a_keys_share_of_the_queue_is_kept_to(serve: Serve, engine: FakeEngine, tmp_path: Path) -> None:
    file = key_file(tmp_path, entry("a", "a", queue_share=2 / 128), entry("b", "b"))
    async with serve(keys=file) as client:
        engine.go.clear()
        held = [asyncio.create_task(complete(client, "a")) for _ in range(2)]
        await eventually(lambda: len(engine.requests) == 2)
        assert (await complete(client, "a")).status_code == 429
        other = asyncio.create_task(complete(client, "b"))
        await eventually(lambda: len(engine.requests) == 3)
        engine.go.set()
        assert [answer.status_code for answer in await asyncio.gather(*held, other)] == [200] * 3
        assert (await complete(client, "a")).status_code == 200


async def test_a_keys_longest_answer_is_refused_above_and_the_default_below(serve: Serve, tmp_path: Path) -> None:
    async with serve(keys=key_file(tmp_path, entry("a", "a", max_tokens=6))) as client:
        answer = await complete(client, "a", max_tokens=7)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "max_tokens_limit"
        assert (await complete(client, "a", max_tokens=None)).json()["usage"]["completion_tokens"] == 6
        body = {"messages": [{"role": "user", "content": "x"}]}
        chat = await client.post("/v1/chat/completions", json=body, headers=bearer("a"))
        assert chat.json()["usage"]["completion_tokens"] == 6


def test_a_configuration_prints_no_key() -> None:
    lines = ServerConfig(api_key="very-secret", keys=Path("keys.yaml")).lines()
    assert not any("very-secret" in line for line in lines)
    assert "api_key = '(set)'" in lines
    assert "keys = 'keys.yaml'" in lines


def test_an_empty_api_key_is_an_error_and_not_an_open_door() -> None:
    with pytest.raises(ValueError, match="api_key"):
        ServerConfig(api_key=" ")
