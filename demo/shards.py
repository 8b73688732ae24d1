"""Training rows on disk, written by many processes while training reads them.

    python -m demo.shards --tokenizer DIR --corpus DIR --out DIR --lengths 512:100 2048:400 --workers 12

`512:100` asks for 100 shards of rows of 512 tokens. A shard holds `SHARD_TOKENS` tokens; its content depends on
the seed, the length and its number alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from demo.rows import Codes, Prose, RowWriter, Tokens

SHARD_TOKENS: Final = 2**20


def shard_path(folder: Path, length: int, number: int) -> Path:
    return folder / f"rows-{length:05}-{number:05}.npz"


def shards_of(folder: Path, length: int) -> list[Path]:
    """The finished shards of one row length, in order of their numbers."""
    return sorted(folder.glob(f"rows-{length:05}-*.npz"))


def read_shard(path: Path) -> tuple[Tokens, Codes]:
    """(ids, codes), each [rows, length + 1]: one more than the model sees, for the last target."""
    with np.load(path) as arrays:
        return arrays["ids"], arrays["codes"]


def write_shard(folder: Path, length: int, number: int, writer: RowWriter, tokens: int = SHARD_TOKENS) -> None:
    """Write one shard; readers never see half a file."""
    rows = [writer.row(length + 1) for _ in range(tokens // length)]
    unfinished = folder / f"unfinished-{length}-{number}.npz"
    np.savez(unfinished, ids=np.stack([ids for ids, _ in rows]), codes=np.stack([codes for _, codes in rows]))
    unfinished.rename(shard_path(folder, length, number))


def work(worker: int, workers: int, options: argparse.Namespace) -> None:
    """Write every `workers`-th shard of the plan."""
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    prose = Prose(options.corpus, tokenizer)
    for index, (length, number) in enumerate(plan(options.lengths)):
        if index % workers == worker and not shard_path(options.out, length, number).exists():
            rng = Random(f"{options.seed} {length} {number}")
            write_shard(options.out, length, number, RowWriter(tokenizer, prose, rng), options.shard_tokens)


def plan(lengths: list[str]) -> list[tuple[int, int]]:
    """(length, number) of all shards in the order of writing: a few of each length first, then length by length."""
    asked = [(int(length), int(count)) for length, count in (text.split(":") for text in lengths)]
    first = [(length, number) for length, count in asked for number in range(min(2, count))]
    return first + [(length, number) for length, count in asked for number in range(2, count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", nargs="+", required=True, help="LENGTH:SHARDS in the order of training")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    Prose(options.corpus, Tokenizer.from_file(str(options.tokenizer / "tokenizer.json")))  # stores the stream once
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(w, options.workers, options)) for w in range(options.workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
