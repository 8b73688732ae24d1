"""``plait chat``: a conversation in the terminal, streamed from a server's chat endpoint."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console

from plait_server.cli.local_server import local_server

HELP = "/reset forgets the conversation, /quit (or Ctrl-D) ends it, Ctrl-C stops a reply"


@dataclass(frozen=True)
class ChatSettings:
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None


class ChatFailed(Exception):
    """The server's own message."""


@dataclass
class Conversation:
    """The history as it is sent: turns are kept only when they were answered."""

    client: httpx.Client
    settings: ChatSettings
    turns: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> Iterator[str]:
        """Pieces of the reply. Whatever part of it was taken becomes history; nothing does when it failed."""
        question = {"role": "user", "content": text}
        reply: list[str] = []
        try:
            for piece in self._stream([*self._opening(), *self.turns, question]):
                reply.append(piece)
                yield piece
        except (ChatFailed, httpx.HTTPError):
            reply.clear()
            raise
        finally:
            if reply:
                self.turns += [question, {"role": "assistant", "content": "".join(reply)}]

    def reset(self) -> None:
        self.turns.clear()

    def _opening(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.settings.system}] if self.settings.system else []

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        body: dict[str, Any] = {"messages": messages, "stream": True}
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        if self.settings.max_tokens is not None:
            body["max_tokens"] = self.settings.max_tokens
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise ChatFailed(message_of(response))
            for line in response.iter_lines():
                yield from pieces_of(line)


def pieces_of(line: str) -> Iterator[str]:
    data = line.removeprefix("data: ")
    if not data or data == "[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        raise ChatFailed(event["error"]["message"])
    for choice in event["choices"]:
        if content := choice["delta"].get("content"):
            yield content


def message_of(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code}"


def run_chat(url: str | None, model: str | None, settings: ChatSettings) -> None:
    """Raises ``LocalServerFailed`` when no URL was given and no server could be started."""
    console = Console(highlight=False)
    with ExitStack() as stack:
        if url is None:
            with console.status("starting a server"):
                url = stack.enter_context(local_server(model))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=httpx.Timeout(10, read=None)))
        talk(console, Conversation(client, settings))


def talk(console: Console, conversation: Conversation) -> None:
    console.print(HELP, style="dim")
    while True:
        try:
            text = console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if text == "/quit":
            return
        if text == "/reset":
            conversation.reset()
            console.print("forgotten", style="dim")
        elif text:
            answer(console, conversation, text)


def answer(console: Console, conversation: Conversation, text: str) -> None:
    try:
        for piece in conversation.ask(text):
            console.print(piece, end="", markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print(" (stopped)", style="dim", end="")
    except (ChatFailed, httpx.HTTPError) as error:
        console.print(f"error: {error}", style="red", markup=False)
    console.print()
