"""Rows, batches, optimiser and schedule, at sizes that take seconds."""

from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer

from demo.batches import SCORED_SHARE, make_batch
from demo.model import TINY, Model
from demo.optimizer import Optimizer, orthogonal
from demo.rows import ANSWER, Prose, RowWriter
from demo.schedule import STAGES, rate_at, stage_at
from demo.train import loss_of
from demo.world import held_out_prose


def rows(tokenizer: Tokenizer, folder: Path, seed: int, count: int, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    (folder / "prose.txt").write_text("\n".join(held_out_prose()) + "\n", encoding="utf-8")
    writer = RowWriter(tokenizer, Prose(folder, tokenizer), Random(seed))
    return [writer.row(length) for _ in range(count)]


def test_rows_are_filled_exactly_and_reproducible(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, again = (rows(tokenizer, tmp_path, 4, 6, 257) for _ in range(2))
    for (ids, codes), (other_ids, _) in zip(first, again, strict=True):
        assert len(ids) == len(codes) == 257
        assert np.array_equal(ids, other_ids)
    assert any((codes == ANSWER).any() for _, codes in first)


def test_answers_are_always_scored_and_no_position_twice(tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = rows(tokenizer, tmp_path, 5, 8, 129)
    ids, codes = np.stack([ids for ids, _ in made]), np.stack([codes for _, codes in made])
    batch = make_batch(ids, codes, np.random.default_rng(0))
    assert len(batch.positions) == int(8 * 128 * SCORED_SHARE)
    assert len(set(batch.positions.tolist())) == len(batch.positions)
    assert int((batch.weights == 1).sum()) == int((codes[:, 1:] == ANSWER).sum())
    flat = batch.ids.flatten()
    inside = batch.positions[(batch.positions + 1) % 128 != 0]
    targets = dict(zip(batch.positions.tolist(), batch.targets.tolist(), strict=True))
    assert all(targets[position] == int(flat[position + 1]) for position in inside.tolist())


def test_a_few_steps_lower_the_loss(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = rows(tokenizer, tmp_path, 6, 4, 129)
    ids = np.stack([ids for ids, _ in made]) % TINY.vocabulary
    batch = make_batch(ids.astype(np.uint16), np.stack([codes for _, codes in made]), np.random.default_rng(0))
    model = Model(TINY)
    optimizer = Optimizer(model)
    losses = []
    for step in range(8):
        loss, entropy = loss_of(model(batch.ids), model.embedding, batch)
        loss.backward()
        optimizer.step(rate_at(0.0, 150 + step))
        losses.append(float(entropy))
    assert losses[-1] < 0.8 * losses[0]


def test_muon_makes_singular_values_nearly_equal() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(2, 48, 32, generator=torch.Generator().manual_seed(0))))
    assert values.min() > 0.5
    assert values.max() < 1.4


def test_the_rate_warms_up_holds_and_falls_to_zero() -> None:
    assert rate_at(0.0, 0) < 0.01
    assert rate_at(0.3, 1000) == 1.0
    assert 0 < rate_at(0.9, 1000) < 0.5
    assert rate_at(1.0, 1000) == 0.0


def test_rows_grow_over_the_training() -> None:
    assert [stage_at(progress).length for progress in (0.0, 0.5, 0.99, 1.0)] == [512, 2048, 8192, 8192]
    assert STAGES[-1].until == 1.0
