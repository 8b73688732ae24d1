"""Batches for the training loop, read ahead of it by a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from demo.rows import ANSWER, LIGHT, LOSS_WEIGHTS, MASKED, Codes, Tokens
from demo.shards import read_shard, shards_of

# Only tokens with a weight need logits: about one in five. A fixed number keeps one compiled graph.
SCORED_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input.

    `ids` is [rows, length]; `positions`, `targets` and `weights` are [scored]: which of the flattened positions
    are scored, against what and how much. No position occurs twice; entries that fill up weigh 0.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor


def make_batch(ids: Tokens, codes: Codes, rng: np.random.Generator) -> Batch:
    """From rows of `length + 1` tokens."""
    targets = ids[:, 1:].reshape(-1).astype(np.int64)
    wanted = codes[:, 1:].reshape(-1)
    scored = int(len(targets) * SCORED_SHARE)
    by_need = [rng.permutation(np.flatnonzero(wanted == code)) for code in (ANSWER, LIGHT, MASKED)]
    positions = np.concatenate(by_need)[:scored]
    weights = np.array(LOSS_WEIGHTS, dtype=np.float32)[wanted[positions]]
    return Batch(
        ids=torch.from_numpy(ids[:, :-1].astype(np.int64)),
        positions=torch.from_numpy(positions),
        targets=torch.from_numpy(targets[positions]),
        weights=torch.from_numpy(weights),
    )


def batches(folder: Path, length: int, rows: int, seed: int, used: set[Path]) -> Iterator[Batch]:
    """Endless batches of one row length: every shard once, then shards again when the writers fall behind.

    `used` collects the shards that were read, across calls.
    """
    rng = np.random.default_rng([seed, length])
    while True:
        shards = shards_of(folder, length)
        fresh = [path for path in shards if path not in used]
        if not shards:
            time.sleep(0.5)
            continue
        path = fresh[0] if fresh else shards[rng.integers(len(shards))]
        used.add(path)
        ids, codes = read_shard(path)
        order = rng.permutation(len(ids))
        for start in range(0, len(order) - rows + 1, rows):
            chosen = order[start : start + rows]
            yield make_batch(ids[chosen], codes[chosen], rng)


class Prefetch:
    """Runs `batches` in a thread, a few batches ahead, and puts them on the device."""

    def __init__(self, source: Iterator[Batch], device: torch.device, depth: int = 6) -> None:
        self._queue: queue.Queue[Batch] = queue.Queue(depth)
        self._source = source
        self._device = device
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._source:
            if self._device.type == "cuda":
                batch = Batch(*(tensor.pin_memory() for tensor in fields(batch)))
            while not self._stopped.is_set():
                try:
                    self._queue.put(batch, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if self._stopped.is_set():
                return

    def next(self) -> Batch:
        batch = self._queue.get()
        return Batch(*(tensor.to(self._device, non_blocking=True) for tensor in fields(batch)))

    def stop(self) -> None:
        self._stopped.set()


def fields(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.ids, batch.positions, batch.targets, batch.weights
