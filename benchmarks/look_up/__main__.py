"""``python -m benchmarks.look_up``: held-out dialogues turn by turn, with prefix reuse and without, letter by letter.

Every turn of a dialogue is asked, so later turns go on from earlier ones; the judged reply is the last.
"""

import argparse
import asyncio
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.cpu_serving.servers import Server, plait
from demo.heldout import LENGTHS, SHIPPED, LookUp, look_ups

REPLY_TOKENS = 64


@dataclass(frozen=True)
class Told:
    """All replies to one dialogue, and how many of the prompts' tokens were not computed again."""

    replies: tuple[str, ...]
    prompt: int
    cached: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.look_up", description=__doc__)
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=1500, help="leave out longer contexts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reuse-only", action="store_true", help="do not run again without prefix reuse")
    raise SystemExit(asyncio.run(run(parser.parse_args())))


async def run(arguments: argparse.Namespace) -> int:
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    lengths = tuple(length for length in LENGTHS if length <= arguments.max_tokens)
    asked = list(look_ups(tokenizer, arguments.n, arguments.seed, lengths))
    with plait(arguments.model, arguments.dtype, arguments.threads) as server:
        warm = await ask_all(server, asked)
    show(asked, warm)
    prompt, cached = sum(told.prompt for told in warm), sum(told.cached for told in warm)
    print(f"prompt tokens {prompt:,}, of which {cached:,} ({100 * cached / prompt:.1f}%) were not computed again")
    if arguments.reuse_only:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as off:
        off.write("prefix_reuse: false\n")
        off.flush()
        with plait(arguments.model, arguments.dtype, arguments.threads, "--config", off.name) as server:
            cold = await ask_all(server, asked)
    differ = sum(a.replies != b.replies for a, b in zip(warm, cold, strict=True))
    replies = sum(len(told.replies) for told in warm)
    print(f"{replies} replies in {len(asked)} dialogues with reuse on and off: {differ} dialogues differ")
    return 1 if differ else 0


async def ask_all(server: Server, asked: list[LookUp]) -> list[Told]:
    gate = asyncio.Semaphore(16)
    with Progress(transient=True) as progress:
        task = progress.add_task(server.name, total=len(asked))

        async def one(look_up: LookUp) -> Told:
            async with gate:
                told = await ask(client, server, look_up)
            progress.advance(task)
            return told

        async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:
            return list(await asyncio.gather(*map(one, asked)))


async def ask(client: httpx.AsyncClient, server: Server, look_up: LookUp) -> Told:
    messages = [{"role": m.role, "content": m.content} for m in look_up.messages]
    replies: list[str] = []
    prompt = cached = 0
    for end in (i + 1 for i, message in enumerate(messages) if message["role"] == "user"):
        body = {"messages": messages[:end], "max_tokens": REPLY_TOKENS, "temperature": 0}
        answer = await client.post(server.url + "/v1/chat/completions", json=body)
        answer.raise_for_status()
        document = answer.json()
        replies.append(document["choices"][0]["message"]["content"])
        prompt += document["usage"]["prompt_tokens"]
        cached += document["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Told(tuple(replies), prompt, cached)


def show(asked: list[LookUp], told: list[Told]) -> None:
    shares: dict[tuple[str, str], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for look_up, answers in zip(asked, told, strict=True):
        right = answers.replies[-1].strip() == look_up.expected
        for kind in ("all", look_up.turns, f"up to {look_up.length} tokens", look_up.form):
            shares[_order(kind), kind][look_up.split].append(right)
    table = Table("look-ups", "unseen entities", "unseen phrasings", title="exact match, greedy, over HTTP")
    for (_, kind), by_split in sorted(shares.items()):
        cells = (
            f"{100 * sum(rights) / len(rights):.1f}% of {len(rights)}" if rights else ""
            for rights in (by_split["entity"], by_split["phrasing"])
        )
        table.add_row(kind, *cells)
    Console().print(table)


def _order(kind: str) -> str:
    if kind == "all":
        return "0"
    if kind in ("single", "multi"):
        return "1"
    return f"2 {int(kind.split()[2]):06d}" if kind.startswith("up to") else "3"


if __name__ == "__main__":
    main()
