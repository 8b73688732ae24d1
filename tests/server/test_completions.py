"""POST /v1/completions: forms of prompts, choices, echo, log-probabilities, usage."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from plait_engine.request import Request
from plait_server.text.model_text import SamplingDefaults
from plait_server.text.tokenizer import TextTokenizer
from tests.server import sse
from tests.server.conftest import front_of
from tests.server.fake_engine import FakeEngine
from tests.server.sse import joined


async def complete(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/completions", json={"prompt": "The quick", **body})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def streamed(client: httpx.AsyncClient, **body: Any) -> sse.Stream:
    response = await client.post("/v1/completions", json={"prompt": "The quick", "stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return sse.parse(response.text)


async def test_a_prompt_may_be_text_or_ids_one_or_several(
    client: httpx.AsyncClient, engine: FakeEngine, tokenizer: TextTokenizer
) -> None:
    ids = tokenizer.encode("The quick", add_special_tokens=False)
    for prompt in ("The quick", ids, ["The quick", "The quick"], [ids, ids]):
        engine.requests.clear()
        document = await complete(client, prompt=prompt)
        count = 1 if prompt in ("The quick", ids) else 2
        assert [choice["index"] for choice in document["choices"]] == list(range(count))
        assert [request.prompt for request in engine.requests] == [tuple(ids)] * count
        assert document["usage"]["prompt_tokens"] == len(ids) * count


async def test_choices_are_numbered_prompt_by_prompt(client: httpx.AsyncClient) -> None:
    together = await complete(client, prompt=["one", "two"], n=3)
    alone = [await complete(client, prompt=prompt, n=3) for prompt in ("one", "two")]
    expected = [choice["text"] for document in alone for choice in document["choices"]]
    assert [choice["text"] for choice in together["choices"]] == expected
    assert len(set(expected)) == 6
    assert (await streamed(client, prompt=["one", "two"], n=3)).texts() == dict(enumerate(expected))


async def test_sixteen_tokens_are_generated_when_nobody_says_how_many(client: httpx.AsyncClient) -> None:
    document = await complete(client)
    assert document["usage"]["completion_tokens"] == 16
    assert document["choices"][0]["finish_reason"] == "length"


async def test_near_the_end_of_the_context_the_default_is_what_fits(client: httpx.AsyncClient) -> None:
    document = await complete(client, prompt=[50] * 250)
    assert document["usage"]["completion_tokens"] == 6


async def test_what_the_client_says_reaches_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.1, "seed": -3, "repetition_penalty": 1.5}
    penalties = {"presence_penalty": -2, "frequency_penalty": 1.5}
    await complete(
        client,
        **sampling,
        **penalties,
        max_tokens=9,
        min_tokens=2,
        n=2,
        logit_bias={"40": -100, "41": 2.5},
        stop_token_ids=[3],
        ignore_eos=True,
        priority=-4,
        cache_salt="s",
    )
    request: Request = engine.requests[0]
    for name, value in {**sampling, **penalties, "max_tokens": 9, "min_tokens": 2, "ignore_eos": True}.items():
        assert getattr(request.sampling, name) == value
    assert request.sampling.logit_bias == {40: -100.0, 41: 2.5}
    assert request.sampling.stop_token_ids == (3,)
    assert (request.n, request.priority, request.cache_salt) == (2, -4, "s")


async def test_null_is_as_good_as_not_given(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    names = "model n stream stream_options max_tokens temperature top_p top_k seed stop logit_bias stop_token_ids echo"
    names += " logprobs suffix best_of user response_format min_tokens cache_salt"
    given = await complete(client, **dict.fromkeys(names.split()))
    assert given["choices"] == (await complete(client))["choices"]
    assert engine.requests[0].sampling == engine.requests[1].sampling


async def test_parameters_without_effect_are_accepted(client: httpx.AsyncClient) -> None:
    plain = await complete(client)
    more = await complete(
        client,
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        service_tier="auto",
        metadata={"a": 1},
        store=True,
    )
    assert more["choices"] == plain["choices"]


async def test_stream_and_whole_answer_carry_the_same(client: httpx.AsyncClient) -> None:
    whole = await complete(client, n=3, logprobs=2)
    stream = await streamed(client, n=3, logprobs=2, stream_options={"include_usage": True})
    assert stream.done
    assert stream.texts() == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert stream.finish_reasons() == {0: ["length"], 1: ["length"], 2: ["length"]}
    assert stream.usage == whole["usage"]
    for choice in whole["choices"]:
        parts = [part["logprobs"] for part in stream.choices if part["index"] == choice["index"]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [item for part in parts for item in part[name]] == choice["logprobs"][name]


async def test_log_probabilities_name_the_chosen_token_with_the_identical_number(client: httpx.AsyncClient) -> None:
    for wanted in (0, 1, 5, 20):
        choice = (await complete(client, logprobs=wanted))["choices"][0]
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == 16
        for token, value, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            assert top[token] == value
            assert wanted <= len(top) <= wanted + 1
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert choice["text"][offset:].startswith(token)


async def test_no_log_probabilities_unless_asked(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await complete(client))["choices"][0]["logprobs"] is None
    assert engine.requests[0].sampling.logprobs is None


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_ids", [True, False])
async def test_a_text_can_be_scored_as_evaluation_tools_do(
    client: httpx.AsyncClient, tokenizer: TextTokenizer, max_tokens: int, as_ids: bool
) -> None:
    text = "A weaver plaits 日本 strands"
    ids = tokenizer.encode(text, add_special_tokens=False)
    body = {"prompt": ids if as_ids else text, "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    choice = (await complete(client, **body))["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(text)
    assert len(logprobs["tokens"]) == len(ids) + max_tokens
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
    assert all(top[token] == value for token, value, top in list(zip(*list(logprobs.values())[:3], strict=True))[1:])
    assert logprobs["text_offset"][0] == 0
    assert sorted(logprobs["text_offset"]) == logprobs["text_offset"]
    stream = await streamed(client, **body)
    assert stream.texts()[0] == choice["text"]
    assert joined(part["logprobs"]["tokens"] for part in stream.choices) == logprobs["tokens"]
    assert stream.finish_reasons() == {0: [choice["finish_reason"]]}


async def test_echo_comes_once_per_choice_and_counts_no_tokens(client: httpx.AsyncClient) -> None:
    plain = await complete(client, n=2)
    echoed = await complete(client, n=2, echo=True)
    stream = await streamed(client, n=2, echo=True)
    expected = ["The quick" + choice["text"] for choice in plain["choices"]]
    assert [choice["text"] for choice in echoed["choices"]] == expected
    assert stream.texts() == dict(enumerate(expected))
    assert echoed["usage"] == plain["usage"]


async def test_token_ids_are_returned_when_asked(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    choice = (await complete(client, return_token_ids=True))["choices"][0]
    assert choice["prompt_token_ids"] == list(engine.requests[0].prompt)
    assert choice["token_ids"] == engine.tokens(engine.requests[0], 0)
    parts = (await streamed(client, return_token_ids=True)).choices
    assert joined(part["token_ids"] for part in parts) == choice["token_ids"]
    assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [choice["prompt_token_ids"]]


async def test_prompt_log_probabilities_are_by_token_id(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    rows = (await complete(client, prompt_logprobs=2))["choices"][0]["prompt_logprobs"]
    prompt = engine.requests[0].prompt
    assert rows[0] is None
    assert len(rows) == len(prompt)
    for token_id, row in zip(prompt[1:], rows[1:], strict=True):
        assert row[str(token_id)].keys() == {"logprob", "rank", "decoded_token"}
        assert 2 <= len(row) <= 3


async def test_the_end_token_counts_but_leaves_no_text(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.always([50, 51, 52])
    for special in (True, False):
        document = await complete(client, skip_special_tokens=special, logprobs=0)
        choice = document["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        assert len(choice["text"]) == 3
        assert document["usage"]["completion_tokens"] == 4
        assert len(choice["logprobs"]["tokens"]) == 4


async def test_a_stop_token_id_is_named_and_leaves_no_text_unless_wanted(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.always([50, 51, 52])
    choice = (await complete(client, stop_token_ids=[51]))["choices"][0]
    assert (len(choice["text"]), choice["finish_reason"], choice["stop_reason"]) == (1, "stop", 51)
    choice = (await complete(client, stop_token_ids=[51], include_stop_str_in_output=True))["choices"][0]
    assert (len(choice["text"]), choice["stop_reason"]) == (2, 51)


async def test_defaults_of_the_model_are_used_where_the_client_says_nothing(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    front = front_of(client)
    front.text = replace(front.text, defaults=SamplingDefaults(temperature=0.25, top_k=5))
    await complete(client)
    await complete(client, temperature=0, top_k=-1)
    sampled = [request.sampling for request in engine.requests]
    assert [(each.temperature, each.top_k) for each in sampled] == [(0.25, 5), (0.0, 0)]


async def test_best_of_tells_the_likeliest_of_what_was_drawn(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    prompts = ["one", "two"]
    drawn = await complete(client, prompt=prompts, n=5, max_tokens=6, logprobs=0)
    told = await complete(client, prompt=prompts, n=2, best_of=5, max_tokens=6, echo=True)
    for place, prompt in enumerate(prompts):
        ranked = sorted(
            drawn["choices"][5 * place : 5 * place + 5], key=lambda choice: sum(choice["logprobs"]["token_logprobs"])
        )
        expected = [prompt + choice["text"] for choice in reversed(ranked[-2:])]
        assert [choice["text"] for choice in told["choices"][2 * place : 2 * place + 2]] == expected
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    assert {choice["logprobs"] for choice in told["choices"]} == {None}
    assert told["usage"]["completion_tokens"] == 2 * 5 * 6
    assert engine.sequences_running == 0
