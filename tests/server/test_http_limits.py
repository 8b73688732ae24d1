"""What uvicorn does not bound by itself: headers, slow clients, bodies."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from plait_server.config import ServerConfig
from plait_server.text.model_text import ModelText
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer


@pytest.fixture(scope="module")
def strict(text: ModelText) -> Iterator[LiveServer]:
    config = ServerConfig(
        port=0,
        log_level="critical",
        header_timeout_seconds=0.4,
        body_timeout_seconds=0.4,
        max_header_bytes=8_192,
        max_body_bytes=100_000,
        keep_alive_seconds=1,
    )
    with LiveServer(FakeEngine(), text, config) as server:
        yield server
        with server.client() as client:
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def talk(server: LiveServer, *parts: bytes, pause: float = 0.0) -> bytes:
    """All that the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.server.port), timeout=5) as client:
        try:
            for part in parts:
                client.sendall(part)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before everything was sent
        received = b""
        try:
            while part := client.recv(65536):
                received += part
        except ConnectionResetError:
            pass
        return received


def error_in(answer: bytes) -> dict[str, str]:
    error: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return error


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(
            b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(2_000)), id="many"
        ),
        pytest.param(HEALTH + b"a: " + b"b" * 20_000 + b"\r\n", id="long"),
        pytest.param(HEALTH + b"a: " + b"b" * 20_000, id="never ending"),
        pytest.param(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nhost: x\r\n", id="long path"),
    ],
)
def test_large_headers_are_431(strict: LiveServer, head: bytes) -> None:
    answer = talk(strict, head, b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431")
    assert error_in(answer)["code"] == "headers_too_large"


def test_sixteen_megabytes_of_header_are_not_collected(strict: LiveServer) -> None:
    answer = talk(strict, HEALTH + b"a: ", *[b"b" * 65_536] * 256)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431")


def test_headers_within_the_bound_are_fine_request_after_request(strict: LiveServer) -> None:
    with strict.client() as client:
        for _ in range(5):
            assert client.get("/health", headers={"a": "b" * 6_000}).status_code == 200


@pytest.mark.parametrize("head", [b"b" * 16_000_000 + b"\r\n", b"b\r\n" + b"c: d\r\n" * 20_000])
def test_the_default_bounds_refuse_headers_of_sixteen_megabytes_and_twenty_thousand_headers(
    live: LiveServer, head: bytes
) -> None:
    answer = talk(live, HEALTH + b"a: " + head + b"\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
    with live.client() as client:
        assert client.get("/health").status_code == 200


def test_a_request_id_of_a_megabyte_and_the_same_one_twice_are_served(live: LiveServer) -> None:
    with live.client() as client:
        plain = client.post("/v1/completions", json={"prompt": "x"}).json()
        for request_id in ("x" * 1024 * 1024, "same", "same"):
            body = {"prompt": "x", "request_id": request_id}
            answer = client.post("/v1/completions", json=body, headers={"x-request-id": request_id})
            assert answer.json()["choices"] == plain["choices"]
            assert len(answer.headers["x-request-id"]) <= 128
    assert len({request.id for request in live.engine.requests}) == 4


@pytest.mark.parametrize("parts", [(), (b"GET /hea",), (HEALTH,)])
def test_half_a_head_is_not_waited_for(strict: LiveServer, parts: tuple[bytes, ...]) -> None:
    started = time.monotonic()
    answer = talk(strict, *parts)
    assert answer.startswith(b"HTTP/1.1 408")
    assert 0.3 < time.monotonic() - started < 3


def test_half_a_body_is_not_waited_for(strict: LiveServer) -> None:
    started = time.monotonic()
    answer = talk(strict, POST + b'content-length: 100\r\n\r\n{"prompt"')
    assert answer.startswith(b"HTTP/1.1 408")
    assert error_in(answer)["code"] == "request_timeout"
    assert 0.3 < time.monotonic() - started < 3
    assert strict.engine.requests == []


def test_a_body_that_trickles_in_is_not_waited_for_either(strict: LiveServer) -> None:
    answer = talk(strict, POST + b"content-length: 100\r\n\r\n", *[b" "] * 12, pause=0.05)
    assert answer.startswith(b"HTTP/1.1 408")


def test_an_answer_may_take_longer_than_the_body_may(strict: LiveServer) -> None:
    strict.engine.step_seconds = 0.1
    try:
        with strict.client() as client:
            assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 8}).status_code == 200
    finally:
        strict.engine.step_seconds = 0.0
        strict.engine.requests.clear()


def test_a_large_body_is_413_by_its_declaration(strict: LiveServer) -> None:
    answer = talk(strict, POST + b"content-length: 100001\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"x-request-id" in answer
    assert error_in(answer)["code"] == "request_too_large"


def test_a_large_body_is_413_also_when_nothing_was_declared(strict: LiveServer) -> None:
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    answer = talk(strict, POST + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 8)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_declared_length_of_5000_digits_is_refused(strict: LiveServer) -> None:
    answer = talk(strict, POST + b"content-length: " + b"9" * 5_000 + b"\r\n\r\n{")
    assert answer.split(b" ", 2)[1] in (b"400", b"413", b"431")


def test_a_length_shorter_than_the_body_ends_the_connection_and_its_work(strict: LiveServer) -> None:
    """What follows is read as another request, and is none; no answer to it may land within that of the first."""
    assert talk(strict, POST + b'content-length: 15\r\n\r\n{"prompt": "x"} and more') == b""
    strict.wait(lambda: len(strict.front.running) == 0)
    assert strict.engine.sequences_running == 0
    strict.engine.requests.clear()


def test_what_is_no_http_is_400_in_the_usual_form(strict: LiveServer) -> None:
    answer = talk(strict, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert error_in(answer)["code"] == "invalid_http"


def test_idle_connections_are_closed_after_a_while(strict: LiveServer) -> None:
    started = time.monotonic()
    answer = talk(strict, HEALTH + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert 0.7 < time.monotonic() - started < 4


def test_websockets_are_refused(strict: LiveServer) -> None:
    head = b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n"
    answer = talk(strict, head + b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
    assert answer.split(b" ", 2)[1] in (b"400", b"404", b"405", b"426")


def test_two_hundred_half_open_connections_do_not_stop_service(live: LiveServer) -> None:
    """Idle ones, half a head, half a body: everybody else is served, and the process does not grow by much."""
    process = psutil.Process()
    heads = (b"", b"GET /hea", HEALTH, POST + b'content-length: 100\r\n\r\n{"prompt"')
    before = process.memory_info().rss
    with ExitStack() as stack:
        for number in range(200):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", live.server.port), timeout=5))
            client.sendall(heads[number % len(heads)])
        with live.client() as client:
            started = time.monotonic()
            for _ in range(20):
                assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
            assert time.monotonic() - started < 10
        assert len(live.front.running) == 0
    assert process.memory_info().rss - before < 40 * 1024 * 1024


def test_memory_stays_flat_while_bad_requests_come(live: LiveServer) -> None:
    process = psutil.Process()
    bodies = [
        b"[" * 100_000,
        b'{"prompt": "' + b"x" * 2_000_000 + b'"}',
        b'{"prompt": ' + b"[1.5]," * 10_000,
        b"\xff" * 9_999,
    ]
    sizes = []
    with live.client() as client:
        for _ in range(4):
            for number in range(40):
                headers = {"content-type": "application/json", "x-request-id": "x" * 1_000_000}
                answer = client.post("/v1/completions", content=bodies[number % len(bodies)], headers=headers)
                assert answer.status_code == 400
            sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[0] < 40 * 1024 * 1024
