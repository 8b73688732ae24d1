"""What people do with chats. Each scenario says how many prompt tokens were really new."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from benchmarks.chat_turns.chats import Messages, Turn, complete, prose, say
from benchmarks.cpu_serving.servers import Server


@dataclass(frozen=True)
class Outcome:
    """``new`` is the number of prompt tokens that no earlier request had; ``turns`` are those measured."""

    turns: tuple[Turn, ...]
    new: int

    @property
    def processed(self) -> int:
        return sum(turn.processed for turn in self.turns)


def system(words: int, seed: int) -> Messages:
    return [{"role": "system", "content": "You answer from what you are told. " + prose(words, seed)}]


def user(words: int, seed: int) -> dict[str, str]:
    return {"role": "user", "content": prose(words, seed) + "?"}


async def long_chat(client: httpx.AsyncClient, server: Server, seed: int) -> Outcome:
    """Eight turns on top of a long history; the first is cold and not counted."""
    messages = [*system(1500, seed), user(12, seed + 1)]
    turns: list[Turn] = []
    for i in range(8):
        turns.append(await say(client, server, messages))
        reply = {"role": "assistant", "content": turns[-1].text}
        messages = [*messages, reply, user(12, seed + 10 + i)]
    new = sum(b.prompt - a.prompt for a, b in itertools.pairwise(turns))
    return Outcome(tuple(turns), new + turns[0].prompt)


async def shared_system(client: httpx.AsyncClient, server: Server, seed: int, chats: int = 16) -> Outcome:
    """Many chats at once behind one long system prompt that nobody has sent before."""
    shared = system(1000, seed)
    turns = await asyncio.gather(*(say(client, server, [*shared, user(12, seed + 1 + i)]) for i in range(chats)))
    common = (await say(client, server, [*shared, {"role": "user", "content": "x"}], 1)).prompt
    return Outcome(tuple(turns), common + sum(max(0, turn.prompt - common) + 8 for turn in turns))


async def raw_prefix(client: httpx.AsyncClient, server: Server, seed: int) -> Outcome:
    """Completions that begin alike and go on differently, one after another."""
    shared = prose(1000, seed)
    turns = [await complete(client, server, f"{shared} {prose(400, seed + 1 + i)}") for i in range(4)]
    common = (await complete(client, server, shared, 1)).prompt
    return Outcome(tuple(turns), common + sum(turn.prompt - common + 2 for turn in turns))


async def edited(client: httpx.AsyncClient, server: Server, seed: int) -> Outcome:
    """The last question of a chat is asked in other words: everything before it is known."""
    history = [*system(1000, seed), user(12, seed + 1)]
    first = await say(client, server, history)
    history = [*history, {"role": "assistant", "content": first.text}]
    second = await say(client, server, [*history, user(12, seed + 2)])
    again = await say(client, server, [*history, user(12, seed + 3)])
    return Outcome((first, second, again), second.prompt + (again.prompt - first.prompt))


async def interleaved(client: httpx.AsyncClient, server: Server, seed: int) -> Outcome:
    """Four chats take turns."""
    chats: list[Messages] = [[*system(500, seed + c), user(12, seed + 100 + c)] for c in range(4)]
    turns: list[Turn] = []
    last: dict[int, int] = {}
    new = 0
    for round_ in range(4):
        for c, messages in enumerate(chats):
            turn = await say(client, server, messages)
            turns.append(turn)
            new += turn.prompt - last.get(c, 0)
            last[c] = turn.prompt
            reply = {"role": "assistant", "content": turn.text}
            chats[c] = [*messages, reply, user(12, seed + 1000 * round_ + c)]
    return Outcome(tuple(turns), new)


Scenario = Callable[[httpx.AsyncClient, Server, int], Awaitable[Outcome]]
SCENARIOS: dict[str, Scenario] = {
    "8 turns": long_chat,
    "16 chats, one system prompt": shared_system,
    "raw prefix, 4 tails": raw_prefix,
    "last question edited": edited,
    "4 chats in turns": interleaved,
}
