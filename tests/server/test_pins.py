"""/v1/cache and its pins: what the engine is told, what clients are told, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait_engine.cache_order import CacheAnswer, CacheOrder, CacheRefusal, CacheVerb
from plait_engine.pin import PinOrder, PinOutcome, PinReport
from plait_server.app import create_app
from plait_server.auth.keys import new_secret
from plait_server.cli.options import OptionError, read_options
from plait_server.config import ServerConfig
from plait_server.configured_pins import ConfiguredPin
from plait_server.text.model_text import ModelText
from tests.server.fake_engine import FakeEngine

REPORT = PinReport(id="pin-1", tokens=19, n_bytes=4096, expires_in_seconds=3600.0)
SHOWN = {
    "id": "pin-1",
    "object": "cache.pin",
    "tokens": 19,
    "bytes": 4096,
    "expires_in_seconds": 3600.0,
    "configured": False,
}
SYSTEM = {"role": "system", "content": "You answer from what you are told."}


@pytest.fixture(autouse=True)
def pinning(engine: FakeEngine) -> None:
    engine.pin_outcome = PinOutcome(REPORT)


async def pin(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/cache/pins", json={"prompt": list(range(40, 60))} | body)


async def test_a_pin_computes_its_prefix_and_generates_nothing(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await pin(client, ttl_seconds=60, cache_salt="s")
    assert (answer.status_code, answer.json()) == (200, SHOWN)
    (request,) = engine.requests
    assert request.prompt == tuple(range(40, 60))
    assert request.pin == PinOrder(ttl_seconds=60.0)
    assert (request.cache_salt, request.sampling.max_tokens) == ("s", 0)


async def test_without_a_time_it_is_an_hour(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await pin(client)
    assert engine.requests[0].pin == PinOrder(ttl_seconds=3600.0)


async def test_pinned_messages_are_what_conversations_begin_with(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await client.post("/v1/cache/pins", json={"messages": [SYSTEM]})
    assert answer.status_code == 200
    for question in ("Good morning", "What?"):
        body = {"messages": [SYSTEM, {"role": "user", "content": question}], "max_tokens": 1}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    pinned, *asked = (request.prompt for request in engine.requests)
    assert len(pinned) > 10
    assert all(prompt[: len(pinned) - 1] == pinned[:-1] for prompt in asked)


async def test_messages_up_to_a_question_are_what_its_answers_begin_with(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    talk = [SYSTEM, {"role": "user", "content": "What is blue?"}]
    assert (await client.post("/v1/cache/pins", json={"messages": talk})).status_code == 200
    await client.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 1})
    pinned, asked = (request.prompt for request in engine.requests)
    assert asked[: len(pinned) - 1] == pinned[:-1]


TTLS: list[Any] = [0, -1, -0.0, 1e-400, 1e308, 30 * 86_400 + 1, "60", True, [60], {"s": 1}]


@pytest.mark.parametrize("ttl", TTLS)
async def test_a_time_that_makes_no_sense_is_refused(client: httpx.AsyncClient, engine: FakeEngine, ttl: Any) -> None:
    """PAIRED: an hour is taken, see above."""
    answer = await pin(client, ttl_seconds=ttl)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ttl_seconds"
    assert not engine.requests


@pytest.mark.parametrize("ttl", ["NaN", "Infinity", "-Infinity", "1e400"])
async def test_a_time_that_is_no_number_is_refused(client: httpx.AsyncClient, engine: FakeEngine, ttl: str) -> None:
    body = f'{{"prompt": [40, 41, 42], "ttl_seconds": {ttl}}}'
    answer = await client.post("/v1/cache/pins", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert not engine.requests


BODIES: list[dict[str, Any]] = [
    {},
    {"prompt": []},
    {"prompt": ""},
    {"prompt": None},
    {"prompt": [[]]},
    {"prompt": [-1]},
    {"prompt": [10**20]},
    {"prompt": [True]},
    {"prompt": ["a", "b"]},
    {"prompt": [40] * 5000},
    {"prompt": "a" * 1_000_000},
    {"messages": []},
    {"messages": [{"role": "user"}]},
    {"prompt": "a", "messages": [SYSTEM]},
    {"prompt": "a", "cache_salt": ""},
    {"prompt": "a", "cache_salt": "x" * 1025},
    {"prompt": "a", "tenant": "other"},
    {"prompt": "a", "configured": True},
    {"prompt": "a", "model": "nothing"},
    {"messages": [SYSTEM], "chat_template_kwargs": {"messages": []}},
]


@pytest.mark.parametrize("body", BODIES, ids=str)
async def test_a_body_that_makes_no_sense_is_refused(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any]
) -> None:
    answer = await client.post("/v1/cache/pins", json=body)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 3000
    assert not engine.requests
    assert (await pin(client)).status_code == 200


@pytest.mark.parametrize("engine_says", ["before", "after"])
async def test_what_does_not_fit_is_refused_with_the_reason(
    client: httpx.AsyncClient, engine: FakeEngine, engine_says: str
) -> None:
    if engine_says == "before":
        engine.refusal = "it cannot be pinned: too large"
    else:
        engine.pin_outcome = PinOutcome(None, "too large")
    error = (await pin(client)).json()["error"]
    assert error["code"] == "pin_refused"
    assert "too large" in error["message"]


async def test_pins_are_listed_and_the_cache_is_shown(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.cache_answer = CacheAnswer(namespaces=2, tokens=50, checkpoints=3, n_bytes=999, pins=(REPORT,))
    assert (await client.get("/v1/cache/pins")).json() == {"object": "list", "data": [SHOWN]}
    shown = (await client.get("/v1/cache", params={"cache_salt": "s"})).json()
    assert (shown["namespaces"], shown["tokens"], shown["pins"], shown["bytes"]) == (2, 50, 1, 999)
    assert engine.orders == [CacheOrder(tenant=""), CacheOrder(tenant="", cache_salt="s")]


async def test_dropping_asks_the_engine_to_forget(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.cache_answer = CacheAnswer(dropped_tokens=7)
    assert (await client.delete("/v1/cache")).json()["dropped_tokens"] == 7
    assert (await client.delete("/v1/cache?cache_salt=x")).status_code == 200
    verbs = [(order.verb, order.cache_salt) for order in engine.orders]
    assert verbs == [(CacheVerb.DROP, None), (CacheVerb.DROP, "x")]


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [(CacheRefusal.UNKNOWN_PIN, 404, "pin_not_found"), (CacheRefusal.CONFIGURED, 403, "pin_configured")],
)
async def test_a_pin_that_is_not_there_or_not_the_clients_is_not_taken_off(
    client: httpx.AsyncClient, engine: FakeEngine, refusal: CacheRefusal, status: int, code: str
) -> None:
    engine.cache_answer = CacheAnswer(refusal=refusal)
    answer = await client.delete("/v1/cache/pins/pin-1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    engine.cache_answer = CacheAnswer()
    assert (await client.delete("/v1/cache/pins/pin-1")).json()["deleted"] is True


@pytest.mark.parametrize("id", ["%00", "..%2F..", "a" * 4000, "%F0%28%8C", "pin-1%0Aset-cookie"])
async def test_an_odd_id_is_only_unknown(client: httpx.AsyncClient, engine: FakeEngine, id: str) -> None:
    engine.cache_answer = CacheAnswer(refusal=CacheRefusal.UNKNOWN_PIN)
    assert (await client.delete(f"/v1/cache/pins/{id}")).status_code == 404


async def test_an_engine_that_is_gone_is_an_error_and_no_hang(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.kill()
    for answer in (await client.get("/v1/cache"), await client.delete("/v1/cache/pins/x"), await pin(client)):
        assert answer.status_code == 503


async def test_the_tenant_comes_from_the_key_and_from_nowhere_else(
    tmp_path: Path, engine: FakeEngine, text: ModelText
) -> None:
    secrets = {tenant: new_secret() for tenant in ("a", "b")}
    keys = tmp_path / "keys.yaml"
    keys.write_text("".join(f"- {{name: {t}, tenant: {t}, sha256: {digest(s)}}}\n" for t, s in secrets.items()))
    app = create_app(ServerConfig(keys=keys), engine, text)
    async with app.router.lifespan_context(app):
        await app.state.front.health.settled.wait()
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://plait") as client:
            assert (await client.get("/v1/cache")).status_code == 401
            assert (await client.delete("/v1/cache/pins/pin-1")).status_code == 401
            for tenant, secret in secrets.items():
                headers = {"authorization": f"Bearer {secret}", "x-tenant": "a"}
                body = {"prompt": [40, 41], "ttl_seconds": 9}
                assert (await client.post("/v1/cache/pins", json=body, headers=headers)).status_code == 200
                await client.get("/v1/cache?tenant=a", headers=headers)
                await client.delete("/v1/cache/pins/pin-1", headers=headers)
                assert engine.requests[-1].tenant == tenant
                assert {order.tenant for order in engine.orders[-2:]} == {tenant}


def digest(secret: str) -> str:
    from hashlib import sha256

    return sha256(secret.encode()).hexdigest()


async def test_a_request_can_pin_its_prompt_and_hears_of_it(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body: dict[str, Any] = {"prompt": list(range(40, 60)), "max_tokens": 2, "plait": {"pin": True, "checkpoint": [7]}}
    answer = await client.post("/v1/completions", json=body)
    assert engine.requests[0].pin == PinOrder(ttl_seconds=3600.0, position=7)
    assert answer.json()["plait"]["pin"] == SHOWN
    engine.pin_outcome = PinOutcome(None, "no room")
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "plait": {"pin": True}}
    answer = await client.post("/v1/chat/completions", json=chat)
    assert engine.requests[1].pin == PinOrder(ttl_seconds=3600.0)
    assert answer.json()["plait"]["pin"] == {"refused": "no room"}
    assert (await client.post("/v1/completions", json=body | {"prompt": ["a", "b"]})).status_code == 400
    await client.post("/v1/completions", json=body | {"plait": {"pin": False}})
    assert engine.requests[-1].pin is None


# From the configuration -----------------------------------------------------------------------------------------------


async def test_pins_of_the_configuration_are_computed_at_start_for_their_tenant(
    engine: FakeEngine, text: ModelText, caplog: pytest.LogCaptureFixture
) -> None:
    pins = (
        ConfiguredPin("A text that many prompts begin with", tenant="team-a", cache_salt="s"),
        ConfiguredPin("much too long " * 9000),
        ConfiguredPin(None, (SYSTEM,)),
    )
    app = create_app(ServerConfig(pins=pins), engine, text)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(10):
            await asyncio.gather(*(task for task in asyncio.all_tasks() if "pin_configured" in str(task.get_coro())))
    first, last = engine.requests
    assert (first.tenant, first.cache_salt) == ("team-a", "s")
    assert first.pin == last.pin == PinOrder(ttl_seconds=None, configured=True)
    assert "pins, entry 2" in caplog.text
    assert "many prompts" not in "\n".join(ServerConfig(pins=pins).lines())


def test_pins_are_read_from_the_configuration_file(tmp_path: Path) -> None:
    prefix = tmp_path / "system.txt"
    prefix.write_text("A long text")
    file = tmp_path / "plait.yaml"
    file.write_text(
        f"pins:\n- prompt_file: {prefix}\n  tenant: team-a\n- prompt: Hello\n"
        "- messages: [{role: system, content: Be brief.}]\n  cache_salt: s\n"
    )
    one, two, three = read_options(file, {}).server.pins
    assert (one.text, one.tenant, two.text) == ("A long text", "team-a", "Hello")
    assert (three.messages, three.cache_salt) == (({"role": "system", "content": "Be brief."},), "s")


@pytest.mark.parametrize(
    "wrong",
    [
        "pins: 3",
        "pins: [3]",
        "pins: [{}]",
        "pins: [{prompt: a, messages: []}]",
        "pins: [{prompt: 3}]",
        "pins: [{prompt: a, ttl: 3}]",
        "pins: [{messages: []}]",
        "pins: [{messages: [{role: nobody, content: a}]}]",
        "pins: [{prompt_file: /nothing/there}]",
        "pin_share: 2",
        "pin_share: .nan",
        "pin_share: -1",
    ],
)
def test_a_wrong_entry_ends_the_start_and_says_where(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "plait.yaml"
    file.write_text(wrong)
    with pytest.raises(OptionError, match="pin"):
        read_options(file, {})
