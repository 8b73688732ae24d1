"""Stop strings through the whole server: streamed and not, several tokens long, with usage and aborts."""

from typing import Any

import httpx
import pytest

from plait_engine.client import EngineClient
from plait_server.text.tokenizer import TextTokenizer
from tests.server import sse
from tests.server.fake_engine import FakeEngine

TEXT = "A weaver plaits Zöpfe und 漢字 😀 xyzzy; in one braid, then rests."


async def both_ways(client: httpx.AsyncClient, **body: Any) -> tuple[dict[str, Any], sse.Stream]:
    """The same request, whole and streamed, which must agree in all that they share."""
    request = {"prompt": "x", "max_tokens": 100, **body}
    whole = (await client.post("/v1/completions", json=request)).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = sse.parse((await client.post("/v1/completions", json={**request, **options})).text)
    assert stream.done
    assert stream.texts() == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert stream.finish_reasons() == {choice["index"]: [choice["finish_reason"]] for choice in whole["choices"]}
    assert stream.usage == whole["usage"]
    return whole, stream


@pytest.fixture
def ids(engine: FakeEngine, tokenizer: TextTokenizer) -> list[int]:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    engine.always(ids)
    return ids


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("length", range(2, 13))
async def test_stop_strings_of_every_length_at_every_offset(
    client: httpx.AsyncClient, engine: FakeEngine, ids: list[int], length: int, tokens_per_step: int
) -> None:
    assert len(ids) > 20
    engine.tokens_per_step = tokens_per_step
    for offset in range(0, len(TEXT) - length, 5):
        stop = TEXT[offset : offset + length]
        whole, _ = await both_ways(client, stop=[stop])
        choice = whole["choices"][0]
        assert choice["text"] == TEXT[: TEXT.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_usage_counts_tokens_up_to_the_stop_string(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer, ids: list[int]
) -> None:
    stop = "plaits"
    needed = next(n for n in range(len(ids)) if stop in tokenizer.decode(ids[:n]))
    for engine.tokens_per_step in (1, 7, 100):
        whole, _ = await both_ways(client, stop=stop, logprobs=1, return_token_ids=True)
        choice = whole["choices"][0]
        assert whole["usage"]["completion_tokens"] == needed
        assert choice["token_ids"] == ids[:needed]
        assert len(choice["logprobs"]["tokens"]) == needed


@pytest.mark.usefixtures("ids")
async def test_of_two_stop_strings_one_a_prefix_of_the_other_the_shorter_ends_the_text(
    client: httpx.AsyncClient,
) -> None:
    whole, _ = await both_ways(client, stop=["weaver plaits", "weaver"])
    assert (whole["choices"][0]["text"], whole["choices"][0]["stop_reason"]) == ("A ", "weaver")


@pytest.mark.usefixtures("ids")
async def test_a_partial_match_at_the_end_is_released(client: httpx.AsyncClient) -> None:
    whole, _ = await both_ways(client, stop=["rests. Then"])
    assert whole["choices"][0]["text"] == TEXT
    assert whole["choices"][0]["stop_reason"] is None


@pytest.mark.usefixtures("ids")
async def test_the_stop_string_can_be_kept(client: httpx.AsyncClient) -> None:
    whole, _ = await both_ways(client, stop=["plaits"], include_stop_str_in_output=True)
    assert whole["choices"][0]["text"] == "A weaver plaits"


async def test_before_min_tokens_nothing_stops(client: httpx.AsyncClient, ids: list[int]) -> None:
    whole, _ = await both_ways(client, stop=["e"], min_tokens=len(ids) - 4)
    assert len(whole["choices"][0]["text"]) > len(TEXT) // 2
    assert whole["choices"][0]["stop_reason"] == "e"
    assert whole["usage"]["completion_tokens"] > len(ids) - 4


async def test_only_the_choice_that_stopped_is_ended_in_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    stopping = tokenizer.encode("one STOP two", add_special_tokens=False)
    other = tokenizer.encode("something else, longer", add_special_tokens=False)
    engine.tokens = lambda _, index: stopping if index == 1 else other
    whole, _ = await both_ways(client, stop=["STOP"], n=3)
    assert [choice["text"] for choice in whole["choices"]] == [
        "something else, longer",
        "one ",
        "something else, longer",
    ]
    assert [choice["stop_reason"] for choice in whole["choices"]] == [None, "STOP", None]
    assert [index for _, index in engine.aborted] == [1, 1]
    assert engine.sequences_running == 0


async def test_what_was_on_its_way_when_a_choice_stopped_is_dropped(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    texts = ["a STOP and very much more of it", "something else that goes on for longer than the other"]
    planned = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    engine.tokens = lambda _, index: planned[index]
    expected, _ = await both_ways(client, stop=["STOP"], n=2)
    engine.ignores_aborts = True
    late, stream = await both_ways(client, stop=["STOP"], n=2)
    assert late["choices"] == expected["choices"]
    assert late["usage"] == expected["usage"]
    assert stream.finish_reasons() == {0: ["stop"], 1: ["stop"]}
    assert engine.sequences_running == 0


@pytest.mark.usefixtures("ids")
async def test_chats_stop_too(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stop": ["braid"], "max_tokens": 100}
    whole = (await client.post("/v1/chat/completions", json=body)).json()
    stream = sse.parse((await client.post("/v1/chat/completions", json={**body, "stream": True})).text)
    assert whole["choices"][0]["message"]["content"] == stream.texts()[0] == TEXT.partition("braid")[0]
    assert stream.choices[-1]["stop_reason"] == whole["choices"][0]["stop_reason"] == "braid"


def test_the_fake_engine_is_an_engine() -> None:
    assert issubclass(FakeEngine, EngineClient)
