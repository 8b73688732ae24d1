"""SIGTERM: new requests are refused, running ones finish or are told why not, and the exit status is 0."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server import sse
from tests.server.live_server import LiveServer

ROOT = Path(__file__).parents[2]


class Target:
    """A server process; ``ask`` sends a request from a thread."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.answers: list[httpx.Response | Exception] = []
        self.threads: list[threading.Thread] = []

    def ask(self, *, stream: bool, max_tokens: int, begins: bool = True) -> None:
        """Returns when the request has begun; unless it never will."""

        def send() -> None:
            body = {"prompt": "x", "stream": stream, "max_tokens": max_tokens}
            try:
                self.answers.append(httpx.post(f"{self.url}/v1/completions", json=body, timeout=20))
            except httpx.HTTPError as error:
                self.answers.append(error)

        self.threads.append(threading.Thread(target=send))
        self.threads[-1].start()
        if begins:
            begun = f"plait_time_to_first_token_seconds_count {len(self.threads)}.0"
            wait(lambda: begun in httpx.get(f"{self.url}/metrics").text)
        else:
            time.sleep(0.5)

    def signal(self) -> None:
        """Returns when it has been noticed."""
        self.process.send_signal(signal.SIGTERM)
        wait(lambda: self.process.poll() is not None or self.drains())

    def drains(self) -> bool:
        try:
            return "shutting down" in httpx.get(f"{self.url}/ready").text
        except httpx.TransportError:
            return True

    def end(self, seconds: float) -> int:
        status = self.process.wait(seconds)
        for thread in self.threads:
            thread.join(5)
        return status


def wait(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("waited in vain")


@contextmanager
def target(grace: float, step: float = 0.02, loads: bool = True) -> Iterator[Target]:
    command = [sys.executable, "-m", "tests.server.drain_target", str(grace), str(step), "yes" if loads else "no"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield Target(process, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_an_idle_server_ends_at_once() -> None:
    with target(grace=30) as server:
        server.signal()
        assert server.end(3) == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == "ended\n"


def test_running_requests_finish_within_the_grace_time() -> None:
    with target(grace=20) as server:
        for stream in (True, False):
            server.ask(stream=stream, max_tokens=100)
        server.signal()
        assert server.end(10) == 0
        for answer in server.answers:
            assert isinstance(answer, httpx.Response)
            assert answer.status_code == 200
            assert '"finish_reason":"length"' in answer.text


def test_new_requests_are_refused_while_old_ones_finish() -> None:
    with target(grace=20) as server:
        server.ask(stream=True, max_tokens=150)
        server.signal()
        refusal = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert refusal.status_code == 503
        assert refusal.json()["error"]["code"] == "draining"
        assert int(refusal.headers["retry-after"]) < 120
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert server.end(10) == 0
        assert isinstance(server.answers[0], httpx.Response)
        assert server.answers[0].text.endswith("data: [DONE]\n\n")


def test_what_is_not_done_after_the_grace_time_is_told_so() -> None:
    with target(grace=0.5) as server:
        server.ask(stream=True, max_tokens=10_000)
        server.ask(stream=False, max_tokens=10_000)
        server.signal()
        assert server.end(3) == 0  # the web server's own way to end them takes longer
        streamed, whole = sorted(server.answers, key=lambda answer: "event-stream" not in str(answer.headers))  # type: ignore[union-attr]
        assert isinstance(streamed, httpx.Response)
        assert isinstance(whole, httpx.Response)
        error = sse.parse(streamed.text).error
        assert error is not None
        assert error["code"] == "draining"
        assert whole.status_code == 503
        assert whole.json()["error"]["code"] == "draining"


def test_a_second_signal_ends_it_at_once() -> None:
    with target(grace=60) as server:
        server.ask(stream=True, max_tokens=10_000)
        server.signal()
        assert server.process.poll() is None
        server.signal()
        assert server.end(3) == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == "ended\n"


def test_a_step_that_hangs_does_not_hold_up_the_end() -> None:
    with target(grace=0.3, step=1_000) as server:
        server.ask(stream=True, max_tokens=5, begins=False)
        server.signal()
        assert server.end(5) == 0
        assert isinstance(server.answers[0], httpx.Response)
        assert server.answers[0].status_code == 503


def test_a_signal_during_start_up_ends_the_start() -> None:
    with target(grace=30, loads=False) as server:
        assert httpx.get(f"{server.url}/ready").status_code == 503
        server.signal()
        assert server.end(3) == 0


@pytest.mark.parametrize("stream", [True, False])
def test_ended_requests_are_counted_as_such(live: LiveServer, stream: bool) -> None:
    live.engine.step_seconds = 0.02
    statuses: list[int] = []

    def ask() -> None:
        with live.client() as client:
            body = {"prompt": "x", "max_tokens": 200, "stream": stream}
            statuses.append(client.post("/v1/completions", json=body).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    live.wait(lambda: live.engine.steps > 2)

    def end() -> None:
        live.front.running.end_all()

    live.call(end)
    thread.join()
    assert statuses == [200 if stream else 503]
    assert counted(live, "shutdown")
    assert live.engine.sequences_running == 0


def counted(live: LiveServer, reason: str) -> bool:
    read: Callable[[], float] = live.front.metrics.aborted_total.labels(reason)._value.get
    return read() == 1
