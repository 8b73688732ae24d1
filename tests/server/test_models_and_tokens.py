"""/v1/models, /tokenize, /detokenize, /tokenizer_info, and the OpenAPI document."""

import json
import subprocess
import sys
from typing import Any

import httpx

from plait_server.text.tokenizer import TextTokenizer

USER = {"role": "user", "content": "hello"}


async def test_the_model_is_listed_under_each_of_its_names(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["fake", "other-name"]
    for card in listed["data"]:
        assert card == (await client.get(f"/v1/models/{card['id']}")).json()
        assert (card["max_model_len"], card["root"], card["parent"], card["object"]) == (256, "fake", None, "model")


async def test_a_name_with_a_slash_can_be_asked_for(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/org/name")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "'org/name'" in response.json()["error"]["message"]


async def test_any_served_name_may_be_used_and_is_in_the_answer(client: httpx.AsyncClient) -> None:
    for name in ("fake", "other-name"):
        answer = await client.post("/v1/completions", json={"model": name, "prompt": "x"})
        assert answer.json()["model"] == name
    assert (await client.post("/v1/completions", json={"prompt": "x"})).json()["model"] == "fake"


async def test_text_to_tokens_and_back(client: httpx.AsyncClient, tokenizer: TextTokenizer) -> None:
    text = "Füße <|mid|> 🙂"
    tokens = (await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert tokens["tokens"] == tokenizer.encode(text, add_special_tokens=True)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 256
    back = (await client.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
    assert back == {"prompt": text}


async def test_messages_to_tokens(client: httpx.AsyncClient, tokenizer: TextTokenizer) -> None:
    tokens = (await client.post("/tokenize", json={"messages": [USER]})).json()["tokens"]
    assert tokenizer.decode(tokens) == "<|start|>user<|mid|>hello<|end|>\n<|start|>assistant<|mid|>"
    closed = (await client.post("/tokenize", json={"messages": [USER], "add_generation_prompt": False})).json()[
        "tokens"
    ]
    assert tokens[: len(closed)] == closed


async def test_no_text_is_no_tokens(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_more_tokens_than_any_text_has_are_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/detokenize", json={"tokens": [5] * 1_048_577})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tokens")


async def test_ids_outside_the_vocabulary_are_refused(client: httpx.AsyncClient) -> None:
    for tokens in ([512], [-1], [True], ["1"], [10**20], "12", None):
        response = await client.post("/detokenize", json={"tokens": tokens})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("tokens")


async def test_nothing_to_tokenize_is_refused_with_what_to_give(client: httpx.AsyncClient) -> None:
    error = (await client.post("/tokenize", json={})).json()["error"]
    assert error["message"] == "prompt: give prompt or messages"
    assert error["code"] == "missing_required_parameter"


async def test_what_is_neither_text_nor_messages_is_refused_in_few_words(client: httpx.AsyncClient) -> None:
    for body in ({}, {"text": "x"}, {"prompt": 5}, {"messages": 5}, {"prompt": "x", "messages": [USER]}):
        response = await client.post("/tokenize", json=body)
        assert response.status_code == 400
        assert len(response.content) < 1_500


async def test_evaluation_tools_find_the_special_tokens(client: httpx.AsyncClient) -> None:
    info = (await client.get("/tokenizer_info")).json()
    assert info["eos_token"] == "<|end|>"
    assert info["bos_token"] == "<|start|>"
    assert "messages" in info["chat_template"]


async def test_the_openapi_document_declares_the_bodies_and_their_bounds(client: httpx.AsyncClient) -> None:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path, name in (("/v1/completions", "CompletionBody"), ("/v1/chat/completions", "ChatBody")):
        body = document["paths"][path]["post"]["requestBody"]
        assert body["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{name}"}
        n = schemas[name]["properties"]["n"]["anyOf"][0]
        assert (n["minimum"], n["maximum"]) == (1, 128)
        assert ("tools" in schemas[name]["properties"]) is (name == "ChatBody")
        assert schemas[name]["additionalProperties"] is False
    assert "ValidationError" not in json.dumps(document)
    assert document["paths"]["/v1/completions"]["post"]["responses"].keys() == {"200", "4XX", "500", "503"}
    assert {"prompt"} == set(schemas["CompletionBody"]["required"])


def test_the_front_end_knows_no_tensors() -> None:
    modules = "plait_server.app, plait_server.cli.start, plait_server.cli.terminal_chat"
    code = f"import {modules}, sys; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
