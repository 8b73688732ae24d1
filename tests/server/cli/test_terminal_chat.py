"""``plait chat`` against a server with a fake engine."""

import io
import json
from collections.abc import Iterator

import httpx
import pytest
from rich.console import Console

from plait_server.cli.terminal_chat import ChatFailed, ChatSettings, Conversation, run_chat, talk
from plait_server.text.tokenizer import TextTokenizer
from tests.server.live_server import LiveServer


@pytest.fixture
def http(live: LiveServer) -> Iterator[httpx.Client]:
    with live.client() as client:
        yield client


def prompt_of(live: LiveServer, tokenizer: TextTokenizer) -> str:
    return tokenizer.decode(live.engine.requests[-1].prompt)


def test_history_is_sent_with_every_question(live: LiveServer, http: httpx.Client, tokenizer: TextTokenizer) -> None:
    live.engine.always(tokenizer.encode("the fox", add_special_tokens=False))
    conversation = Conversation(http, ChatSettings(system="be brief", max_tokens=50, temperature=0.5))
    assert "".join(conversation.ask("who jumps?")) == "the fox"
    assert "".join(conversation.ask("over whom?")) == "the fox"
    expected = "<|start|>system<|mid|>be brief<|end|>\n<|start|>user<|mid|>who jumps?<|end|>\n"
    expected += (
        "<|start|>assistant<|mid|>the fox<|end|>\n<|start|>user<|mid|>over whom?<|end|>\n<|start|>assistant<|mid|>"
    )
    assert prompt_of(live, tokenizer) == expected
    assert live.engine.requests[-1].sampling.temperature == 0.5
    conversation.reset()
    list(conversation.ask("again"))
    assert "who jumps" not in prompt_of(live, tokenizer)


def test_the_server_s_own_message_is_shown_and_the_question_forgotten(live: LiveServer, http: httpx.Client) -> None:
    conversation = Conversation(http, ChatSettings())
    live.engine.full = True
    with pytest.raises(ChatFailed, match="wait already"):
        list(conversation.ask("hello"))
    live.engine.full, live.engine.error_at_step = False, 2
    with pytest.raises(ChatFailed, match="a kernel failed"):
        list(conversation.ask("hello"))
    assert conversation.turns == []


def test_a_reply_that_was_stopped_stays_in_the_history(live: LiveServer, http: httpx.Client) -> None:
    conversation = Conversation(http, ChatSettings(max_tokens=100))
    live.engine.step_seconds = 0.01
    reply = conversation.ask("hello")
    begun = next(reply)
    assert isinstance(reply, Iterator)
    reply.close()  # type: ignore[attr-defined]
    assert conversation.turns[1] == {"role": "assistant", "content": begun}
    live.wait(lambda: live.engine.sequences_running == 0)


def test_a_session_in_the_terminal(live: LiveServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["hello", "", "/reset", "[bold]again", "/quit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(typed))
    live.engine.always([50, 51, 52])
    output = io.StringIO()
    conversation = Conversation(http, ChatSettings())
    talk(Console(file=output, force_terminal=False), conversation)
    reply = live.front.text.tokenizer.decode([50, 51, 52])
    assert output.getvalue().count(reply) == 2
    assert "forgotten" in output.getvalue()
    assert [turn["content"] for turn in conversation.turns] == ["[bold]again", reply]


def test_the_end_of_input_ends_the_session(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_: object) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    run_chat(live.url, None, ChatSettings())


def test_a_server_that_is_not_there_is_an_error_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["hello", "/quit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(typed))
    run_chat("http://127.0.0.1:9", None, ChatSettings())
    with pytest.raises(StopIteration):
        next(typed)


def test_error_pages_that_are_not_ours_are_shown_by_status() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(502, text="<html>"))
    with httpx.Client(transport=transport, base_url="http://x") as client, pytest.raises(ChatFailed, match="502"):
        list(Conversation(client, ChatSettings()).ask("hello"))


def test_requests_carry_only_what_was_asked_for() -> None:
    seen: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(200, text="data: [DONE]\n\n")

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x") as client:
        list(Conversation(client, ChatSettings()).ask("hello"))
    assert seen == [{"messages": [{"role": "user", "content": "hello"}], "stream": True}]
