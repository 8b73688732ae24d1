"""Runs step plans: batch, forward, sampling."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from plait_engine.models.base import Model
from plait_engine.request import TokenLogprobs
from plait_engine.runner.builder import BatchBuilder, BuiltBatch
from plait_engine.runner.download import Download
from plait_engine.runner.grammars import Grammars
from plait_engine.runner.graphs import StepGraphs
from plait_engine.runner.prompt_scores import PromptScores, score_prompts
from plait_engine.runner.rows import RowTables
from plait_engine.runner.sampler import Draw, Sampler, needs_history, to_host
from plait_engine.runner.shape import Shape
from plait_engine.runner.upload import Upload
from plait_engine.scheduler.step_plan import Row, StepPlan
from plait_engine.sequence import Sequence
from plait_engine.state.restore import Flaw
from plait_engine.state.spec import StateGroup
from plait_engine.state.unit_copy import UnitCopier
from plait_kernels.select import Kernels

Tap = Callable[[tuple[Row, ...], Tensor], None]


@dataclass(frozen=True)
class Sampled:
    """What a step gave one sequence."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Launched:
    """A step under way. ``planned_seconds`` is the host time that building it took.

    What its tensors hold is there after ``wait``, which waits for this step and for none behind it.
    """

    plan: StepPlan
    planned_seconds: float
    download: Download
    sampled: tuple[Row, ...]
    draw: Draw | None
    scores: list[PromptScores]
    same: dict[Sequence, Tensor]
    """What restores found, by the sequence that they were for: see ``Restore.launch``."""

    def flaw(self, row: Row, groups: tuple[StateGroup, ...]) -> Flaw | None:
        """After ``wait``: whether the row's restore brought other bytes than were stored."""
        return None if row.restore is None else row.restore.verdict(self.same.get(row.sequence), groups)

    @property
    def blocks_planning(self) -> bool:
        """Whether the next step can only be built when this one's tokens are on the host."""
        return any(needs_history(row.sequence) for row in self.sampled)

    def wait(self) -> dict[Sequence, Sampled]:
        """The sampled tokens by sequence. Scores of prompts go to their sequences."""
        self.download.wait()
        for scores in self.scores:
            scores.keep()
        if self.draw is None:
            return {}
        sequences = [row.sequence for row in self.sampled]
        token_ids: list[int] = self.draw.token_ids.tolist()
        logprobs: list[TokenLogprobs | None] = [None] * len(sequences)
        if self.draw.logprobs is not None:
            wanted = [s.request.sampling.logprobs for s in sequences]
            logprobs = to_host(self.draw.logprobs, token_ids, wanted)
        return {s: Sampled(t, l) for s, t, l in zip(sequences, token_ids, logprobs, strict=True)}


class ModelRunner:
    """Owns the model and the row tables. ``launch`` returns without waiting for the device."""

    def __init__(
        self,
        model: Model,
        kernels: Kernels,
        tables: RowTables,
        device: torch.device,
        *,
        copier: UnitCopier,
        decode_padding: int,
        eos_token_ids: Iterable[int],
        grammars: Grammars | None = None,
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.tables = tables
        self.copier = copier
        self.device = device
        self.upload = Upload(device)
        self.builder = BatchBuilder(tables, self.upload, decode_padding)
        self.graphs = StepGraphs(model, kernels, tables, decode_padding)
        self.grammars = grammars or Grammars(None)
        self.sampler = Sampler(kernels, self.upload, eos_token_ids, self.grammars)
        self._last_tokens = torch.zeros(tables.padding_row + 1, dtype=torch.int64, device=device)
        """The last sampled token of each row, so that the next step need not wait for the host to know it."""
        self._threads = torch.get_num_threads()
        self._residents: dict[int, tuple[Sequence, int]] = {}
        self.tap: Tap | None = None
        """Sees the logits of every sampling row before they are sampled from, in memory that a later step writes again;
        for checks, not for serving."""

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def launch(self, plan: StepPlan) -> Launched:
        started = time.perf_counter()
        self._refresh(plan)
        shape = self.graphs.shape(plan)
        built = self.builder.build(plan, shape)
        planned = time.perf_counter() - started
        download = Download(self.device)
        same = self._restore(plan, download)
        draw, scores = self._forward(plan, built, shape, download)
        download.close()
        return Launched(plan, planned, download, built.sampled, draw, scores, same)

    def _restore(self, plan: StepPlan, download: Download) -> dict[Sequence, Tensor]:
        restores = ((row.sequence, row.restore) for row in plan.rows if row.restore is not None)
        found = {sequence: restore.launch(self.copier) for sequence, restore in restores}
        return {sequence: download.bring(same) for sequence, same in found.items() if same is not None}

    @torch.inference_mode()
    def _forward(
        self, plan: StepPlan, built: BuiltBatch, shape: Shape | None, download: Download
    ) -> tuple[Draw | None, list[PromptScores]]:
        batch = built.batch
        if built.pending is not None:
            batch.token_ids[built.pending.places] = self._last_tokens[built.pending.rows]
        scores: list[PromptScores] = []
        hidden = None if shape is None else self.graphs.hidden(batch, shape, self.builder.only_padding)
        if hidden is None:
            hidden = self.model(batch)
            scores = score_prompts(plan, built, hidden, self.model, self.kernels, download)
        if not built.sampled:
            return None, scores
        wanted = hidden[: len(built.sampled)] if plan.replayable else hidden[batch.logit_rows]
        logits = self.model.logits(wanted)
        if self.tap is not None:
            self.tap(built.sampled, logits)
        draw = self.sampler.draw(logits, built.sampled)
        self._last_tokens[built.sampled_rows] = draw.token_ids
        logprobs = None if draw.logprobs is None else download.bring_logprobs(draw.logprobs)
        return Draw(download.bring(draw.token_ids), logprobs), scores

    def upgrade_kernels(self) -> None:
        """Take over faster kernels that became ready; between steps only."""
        if self.kernels.upgrade():
            self.graphs.forget()
            self.settle_threads()

    def settle_threads(self) -> None:
        """Compiled ops bring their own threads. PyTorch's, which wait for one another at every op, would fight them."""
        if self.kernels.compiled:
            self.kernels.use_threads(self._threads)
            torch.set_num_threads(1)

    def _refresh(self, plan: StepPlan) -> None:
        for row in plan.rows:
            sequence = row.sequence
            resident = (sequence, sequence.admissions)
            if self._residents.get(sequence.row) != resident:
                self.tables.enter(sequence)
                self._residents[sequence.row] = resident
            self.tables.refresh(sequence)
