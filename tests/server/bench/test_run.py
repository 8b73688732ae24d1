"""``plait bench serve`` against a server, and against servers that will not do."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from plait_server.bench.run import Run
from plait_server.bench.target import events
from plait_server.bench.workload import Shape
from plait_server.cli.commands import app
from plait_server.config import ServerConfig
from plait_server.text.model_text import ModelText
from tests.server.fake_engine import FakeEngine
from tests.server.live_server import LiveServer


@pytest.fixture
def live(text: ModelText) -> Iterator[LiveServer]:
    with LiveServer(FakeEngine(max_model_len=8_192), text) as server:
        yield server


def bench(url: str, *options: str) -> Result:
    return CliRunner().invoke(app, ["bench", "serve", "--url", f"{url}/v1", *options], env={"COLUMNS": "120"})


def numbers_of(result: Result, path: Path) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    numbers: dict[str, Any] = json.loads(path.read_text())
    return numbers


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        (("--workload", "random", "--concurrency", "3"), 6),
        (("--workload", "shared-prefix", "--groups", "2", "--prefix-tokens", "40"), 6),
        (("--workload", "multi-turn", "--turns", "3"), 18),
        (("--workload", "random", "--rate", "200", "--no-ignore-eos"), 6),
    ],
)
def test_every_load_is_played_and_counted(
    live: LiveServer, tmp_path: Path, options: tuple[str, ...], requests: int
) -> None:
    live.engine.cached_tokens = 5
    path = tmp_path / "numbers.json"
    common = ("--sessions", "6", "--input-tokens", "20", "--output-tokens", "9", "--json", str(path))
    result = bench(live.url, *options, *common)
    numbers = numbers_of(result, path)
    assert numbers["requests"] == {"completed": requests, "failed": 0}
    assert numbers["tokens"]["output"] == 9 * requests
    assert numbers["tokens"]["cached"] == 5 * requests
    asked = live.engine.requests[-requests:]
    assert numbers["tokens"]["input"] == sum(len(request.prompt) for request in asked)
    assert {request.sampling.ignore_eos for request in asked} == {"--no-ignore-eos" not in options}
    assert numbers["time_to_first_token"]["p50"] <= numbers["end_to_end"]["p50"]
    assert f"{requests} requests in" in result.output
    assert "time to first token" in result.output


def test_prompts_have_about_the_tokens_that_were_asked_for(live: LiveServer, tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    result = bench(live.url, "--sessions", "4", "--input-tokens", "300", "--output-tokens", "2", "--json", str(path))
    assert numbers_of(result, path)["tokens"]["input"] == pytest.approx(1_200, rel=0.15)


def test_a_trace_is_played_at_its_times(live: LiveServer, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.jsonl", tmp_path / "numbers.json"
    lines = [{"timestamp": 300 * i, "input_length": 50, "output_length": 3, "hash_ids": [i]} for i in range(3)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    result = bench(live.url, "--workload", "trace", "--trace", str(trace), "--speed", "2", "--json", str(path))
    numbers = numbers_of(result, path)
    assert numbers["requests"]["completed"] == 3
    assert 0.3 <= numbers["seconds"] < 3


def test_the_same_load_twice_is_the_same_prompts(live: LiveServer) -> None:
    for _ in range(2):
        assert bench(live.url, "--sessions", "3", "--concurrency", "1", "--input-tokens", "20").exit_code == 0
    prompts = [request.prompt for request in live.engine.requests]
    assert prompts[: len(prompts) // 2] == prompts[len(prompts) // 2 :]


def test_what_fails_is_counted_and_told(live: LiveServer) -> None:
    live.engine.error_at_step = 2
    result = bench(live.url, "--sessions", "3", "--input-tokens", "20")
    assert result.exit_code == 1
    assert "0 requests in" in result.output
    assert "failed 3 times: in the stream" in result.output


def test_a_server_that_is_not_there_or_wants_a_key_is_an_error_of_one_line(text: ModelText) -> None:
    result = bench("http://127.0.0.1:9", "--sessions", "1")
    assert result.exit_code == 2
    assert "does not say which model" in result.output
    config = ServerConfig(port=0, log_level="error", api_key="secret")
    with LiveServer(FakeEngine(max_model_len=8_192), text, config) as live:
        assert bench(live.url, "--sessions", "1").exit_code == 2
        assert bench(live.url, "--sessions", "1", "--api-key", "secret").exit_code == 0


def test_a_trace_that_is_none_is_an_error_of_one_line(live: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("{}")
    for name in ("trace", "nowhere"):
        result = bench(live.url, "--workload", "trace", "--trace", str(tmp_path / name))
        assert result.exit_code == 2
        assert name in result.output


@pytest.mark.parametrize(
    "options",
    [{"workload": "all"}, {"rate": 0.0}, {"concurrency": 0}, {"workload": "trace"}, {"shape": Shape(trace=Path("x"))}],
)
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"workload|above 0|trace"):
        Run(url="http://x/v1", **options)


async def test_events_are_found_however_their_bytes_are_cut() -> None:
    sent = b'data: {"a": 1}\r\n\r\n: comment\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(sent), size):
            yield sent[start : start + size]

    for size in range(1, len(sent) + 1):
        assert [event async for event in events(pieces(size))] == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
