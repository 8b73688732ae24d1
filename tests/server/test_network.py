"""Where requests may come from, and how they get here: networks, proxies, browsers, paths, TLS, and for how long."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait_server.app import create_app
from plait_server.cli.start import check_tls
from plait_server.config import ServerConfig
from plait_server.text.model_text import ModelText
from tests.server import sse
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer

ASK = {"prompt": "x", "max_tokens": 4}


@pytest.fixture
async def serve(engine: FakeEngine, text: ModelText) -> AsyncIterator[Callable[..., Any]]:
    """Makes clients, each of a server with the given options and at the given address."""
    opened: list[Any] = []

    async def client(address: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
        app = create_app(ServerConfig(served_names=("fake",), **options), engine, text)
        lifespan = app.router.lifespan_context(app)
        await lifespan.__aenter__()
        opened.append(lifespan)
        await app.state.front.health.settled.wait()
        transport = httpx.ASGITransport(app=app, client=(address, 1234))
        return httpx.AsyncClient(transport=transport, base_url="http://plait", timeout=20)

    yield client
    for lifespan in opened:
        await lifespan.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("10.1.2.3", 200),
        ("11.1.2.3", 403),
        ("::ffff:10.1.2.3", 200),
        ("::ffff:11.1.2.3", 403),
        ("2001:db8::7", 200),
        ("2001:db9::7", 403),
        ("somewhere", 403),
    ],
)
async def test_only_clients_of_allowed_networks_get_in(
    serve: Callable[..., Any], engine: FakeEngine, address: str, status: int
) -> None:
    client = await serve(address, allowed_networks=("10.0.0.0/8", "2001:db8::/32"))
    for method, path in (("POST", "/v1/completions"), ("GET", "/health"), ("GET", "/nothing")):
        answer = await client.request(method, path, json=ASK if method == "POST" else None)
        assert answer.status_code == (404 if path == "/nothing" and status == 200 else status)
    assert (status == 200) is bool(engine.requests)
    if status == 403:
        assert answer.json()["error"]["code"] == "network_not_allowed"
        assert answer.headers["x-request-id"]


async def test_without_networks_everybody_gets_in(serve: Callable[..., Any]) -> None:
    assert (await (await serve("203.0.113.9")).get("/health")).status_code == 200


def test_a_proxy_says_who_the_client_is_only_where_it_is_trusted(text: ModelText) -> None:
    headers = {"x-forwarded-for": "10.1.2.3"}
    for trusted, status in ((("127.0.0.0/8",), 200), (("192.168.0.0/16",), 403), ((), 403)):
        config = ServerConfig(port=0, log_level="error", allowed_networks=("10.0.0.0/8",), trusted_proxies=trusted)
        with LiveServer(FakeEngine(), text, config) as live, live.client() as client:
            assert client.get("/health", headers=headers).status_code == status


async def test_pages_of_allowed_origins_may_use_the_server(serve: Callable[..., Any]) -> None:
    client = await serve(cors_origins=("https://chat.example.com",), api_key="secret")
    asked = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization, content-type"
    allowed = await client.options("/v1/chat/completions", headers=asked)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://chat.example.com"
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    refused = await client.options("/v1/chat/completions", headers=asked | {"origin": "https://evil.example.com"})
    assert "access-control-allow-origin" not in refused.headers
    page = {"origin": "https://chat.example.com"}
    for headers, status in ((page, 401), (page | {"authorization": "Bearer secret"}, 200)):
        answer = await client.post("/v1/completions", json=ASK, headers=headers)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_without_origins_browsers_are_told_nothing(serve: Callable[..., Any]) -> None:
    answer = await (await serve()).post("/v1/completions", json=ASK, headers={"origin": "https://chat.example.com"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_a_root_path_may_be_in_front_of_every_path(serve: Callable[..., Any], prefix: str) -> None:
    client = await serve(root_path="/llm", api_key="secret")
    key = {"authorization": "Bearer secret"}
    assert (await client.post(prefix + "/v1/completions", json=ASK, headers=key)).status_code == 200
    assert (await client.post(prefix + "/v1/completions", json=ASK)).status_code == 401
    assert (await client.get(prefix + "/health")).status_code == 200
    assert (await client.get(prefix + "/v1/models", headers=key)).status_code == 200
    assert (await client.get("/llmx/health", headers=key)).status_code == 404
    assert (await client.get("/llmx/health")).status_code == 401
    document = (await client.get(prefix + "/openapi.json", headers=key)).json()
    assert document["servers"] == [{"url": "/llm"}]


async def test_an_answer_that_takes_too_long_is_504(serve: Callable[..., Any], engine: FakeEngine) -> None:
    engine.step_seconds = 0.05
    client = await serve(request_timeout_seconds=0.2)
    answer = await client.post("/v1/completions", json=ASK | {"max_tokens": 100})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "time_limit"
    assert answer.headers["x-should-retry"] == "false"
    assert engine.sequences_running == 0
    assert (await client.post("/v1/completions", json=ASK | {"max_tokens": 1})).status_code == 200
    text = (await client.get("/metrics")).text
    assert 'plait_aborted_total{reason="time_limit"} 1.0' in text
    assert "plait_refused_total{" not in text


async def test_a_stream_that_takes_too_long_ends_with_an_error(serve: Callable[..., Any], engine: FakeEngine) -> None:
    engine.step_seconds = 0.05
    client = await serve(request_timeout_seconds=0.3)
    answer = await client.post("/v1/completions", json=ASK | {"max_tokens": 100, "stream": True})
    stream = sse.parse(answer.text)
    assert not stream.done
    assert stream.error is not None
    assert stream.error["code"] == "time_limit"
    assert len(stream.events) > 2
    assert engine.sequences_running == 0
    text = (await client.get("/metrics")).text
    assert 'plait_aborted_total{reason="time_limit"} 1.0' in text
    assert "client_gone" not in text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_tls(text: ModelText, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    config = ServerConfig(port=0, log_level="critical", tls_cert=cert, tls_key=key)
    check_tls(config)
    trust = ssl.create_default_context(cafile=str(cert))
    with LiveServer(FakeEngine(), text, config) as live:
        url = live.url.replace("http", "https")
        with httpx.Client(base_url=url, verify=trust, timeout=10) as client:
            assert client.post("/v1/completions", json=ASK).status_code == 200
            with client.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as response:
                assert sse.parse(response.read().decode()).done
            assert client.get("/health", headers={"a": "b" * 2_000_000}).status_code == 431
        with pytest.raises(httpx.TransportError), httpx.Client(base_url=live.url) as plain:
            plain.get("/health")
        with httpx.Client(base_url=url, verify=trust, timeout=10) as client:
            assert client.get("/health").status_code == 200


def test_files_that_are_no_certificate_and_key_are_refused_at_start(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pem"):
        check_tls(ServerConfig(tls_cert=cert, tls_key=tmp_path / "nowhere.pem"))
    with pytest.raises(OSError, match=f"{key.name} and .*{cert.name} are no certificate and private key"):
        check_tls(ServerConfig(tls_cert=key, tls_key=cert))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_networks": ("10.0.0.1/8",)}, "host bits"),
        ({"allowed_networks": ("everywhere",)}, "everywhere"),
        ({"trusted_proxies": ("x",)}, "'x'"),
        ({"root_path": "llm"}, "root_path"),
        ({"root_path": "/llm/"}, "root_path"),
        ({"tls_key": Path("x")}, "go together"),
        ({"request_timeout_seconds": 0.0}, "request_timeout"),
        ({"tool_format": "xml"}, "tool_format must be one of auto, hermes"),
        ({"reasoning_format": "on"}, "reasoning_format must be one of auto, think, none"),
    ],
)
def test_what_cannot_be_is_refused_at_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerConfig(**options)
