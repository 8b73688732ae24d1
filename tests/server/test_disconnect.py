"""A client that goes away ends its work, at whatever stage; one that stays is served."""

import json
import socket
import threading
from typing import Any

import pytest

from tests.server.live_server import LiveServer

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES = [
    pytest.param("/v1/completions", {"prompt": "hello"}, id="completion"),
    pytest.param("/v1/completions", {"prompt": "hello", "n": 4}, id="completion n=4"),
    pytest.param("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2}, id="three prompts n=2"),
    pytest.param("/v1/chat/completions", CHAT, id="chat"),
    pytest.param("/v1/chat/completions", {**CHAT, "n": 4}, id="chat n=4"),
]


def post(live: LiveServer, path: str, body: dict[str, Any]) -> socket.socket:
    """Sends a request and does not wait for its answer."""
    data = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", live.server.port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client


def assert_idle_soon(live: LiveServer) -> None:
    """Within two steps of each of at most three requests."""
    steps = live.engine.steps
    live.wait(lambda: live.engine.sequences_running == 0)
    assert live.engine.steps <= steps + 2 * 3, "the engine went on after the client had left"
    live.wait(lambda: len(live.front.running) == 0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_client_that_leaves_in_mid_decode_ends_its_sequences(
    live: LiveServer, path: str, body: dict[str, Any], stream: bool
) -> None:
    live.engine.step_seconds = 0.02
    client = post(live, path, {**body, "stream": stream, "max_tokens": 200})
    live.wait(lambda: live.engine.steps >= 5)
    assert live.engine.sequences_running > 0
    client.close()
    assert_idle_soon(live)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_client_that_leaves_before_the_first_token_ends_its_sequences(
    live: LiveServer, path: str, body: dict[str, Any], stream: bool
) -> None:
    live.call(live.engine.go.clear)
    client = post(live, path, {**body, "stream": stream})
    live.wait(lambda: live.engine.sequences_running > 0)
    client.close()
    live.wait(lambda: live.engine.sequences_running == 0)
    assert live.engine.steps == 0


def test_a_client_that_only_ends_its_sending_side_is_gone_too(live: LiveServer) -> None:
    live.engine.step_seconds = 0.02
    client = post(live, "/v1/completions", {"prompt": "x", "max_tokens": 200})
    live.wait(lambda: live.engine.steps >= 2)
    client.shutdown(socket.SHUT_WR)
    live.wait(lambda: live.engine.sequences_running == 0)
    client.close()


def test_a_client_that_leaves_disturbs_nobody_else(live: LiveServer) -> None:
    live.engine.step_seconds = 0.01
    answers: list[dict[str, Any]] = []

    def stay() -> None:
        with live.client() as client:
            answers.append(client.post("/v1/completions", json={"prompt": "stay", "max_tokens": 40}).json())

    thread = threading.Thread(target=stay)
    thread.start()
    live.wait(lambda: live.engine.sequences_running == 1)
    for _ in range(5):
        client = post(live, "/v1/completions", {"prompt": "leave", "max_tokens": 200, "stream": True})
        client.recv(100)
        client.close()
    thread.join()
    assert answers[0]["usage"]["completion_tokens"] == 40
    live.wait(lambda: live.engine.sequences_running == 0)


def test_a_connection_is_used_again_after_each_kind_of_answer(live: LiveServer) -> None:
    """The watch for a vanished client must not take the end of an exchange for one."""
    with live.client() as client:
        for _ in range(3):
            for stream in (True, False):
                answer = client.post("/v1/completions", json={"prompt": "x", "stream": stream})
                assert answer.status_code == 200
            assert client.post("/v1/completions", json={"prompt": ""}).status_code == 400
            assert client.get("/health").status_code == 200
    assert live.front.metrics.aborted_total.labels("client_gone")._value.get() == 0


def test_requests_in_a_pipeline_are_answered_in_order(live: LiveServer) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 3}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    one = head + b"content-length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", live.server.port), timeout=10) as client:
        client.sendall(one * 3)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 3 or not received.endswith(b"}"):
            part = client.recv(65536)
            assert part, received
            received += part
    assert len(live.engine.requests) == 3


def test_an_abandoned_request_is_counted(live: LiveServer) -> None:
    live.engine.step_seconds = 0.02
    client = post(live, "/v1/completions", {"prompt": "x", "max_tokens": 200})
    live.wait(lambda: live.engine.steps >= 2)
    client.close()
    counter = live.front.metrics.aborted_total.labels("client_gone")
    live.wait(lambda: counter._value.get() == 1)
