"""Tiny engines and the fixtures of the design page: ORACLE, POISON, SENSITIVE, TINY, TIE, EDGE, BOOKS, DISTINCT.

Models have random weights from config.json alone, made once a session; an engine around one takes milliseconds.
"""

import copy
import json
import math
import random
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from plait_engine.engine import Engine
from plait_engine.loader.load import fill_model, read_config
from plait_engine.models.base import Build, Model, bind_states
from plait_engine.models.registry import build_model
from plait_engine.request import Delta, FinishReason, Request, SamplingParams, TokenLogprobs
from plait_engine.runner.grammars import Grammars
from plait_engine.runner.rows import RowTables
from plait_engine.runner.runner import ModelRunner
from plait_engine.scheduler.scheduler import Scheduler, SchedulerLimits
from plait_engine.sequence import Sequence
from plait_engine.state.arena import Arena
from plait_engine.state.ledger import Ledger, Poison
from plait_engine.state.placement import Placement
from plait_engine.state.prefix_cache import PrefixCache
from plait_engine.state.unit_copy import UnitCopier
from plait_engine.stats import Stats
from tests.engine.braid import build_braid
from tests.engine.rig import REFERENCE, Rig

VOCAB = 128
EOS = 2
PAGE, WINDOW, CONV, BUDGET, PADDING = 4, 8, 4, 13, 8
"""TINY: all different from one another, so that no two can be mixed up unnoticed."""
EDGE = sorted({1, 2, 3, 4} | {n * b + d for b in (PAGE, WINDOW, CONV + 1, BUDGET) for n in (1, 2) for d in (-1, 0, 1)})
TIE = 2e-4
"""Two best log-probabilities closer than this may come in either order."""
CLOSE = 1e-4
"""Largest difference of log-probabilities that rounding explains, fp32."""
CPU = torch.device("cpu")

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-6,
    "eos_token_id": EOS,
    "tie_word_embeddings": True,
    "dtype": "float32",
}
_GRANITE = _COMMON | {
    "model_type": "granitemoehybrid",
    "hidden_act": "silu",
    "shared_intermediate_size": 48,
    "num_local_experts": 0,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": CONV,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "embedding_multiplier": 3.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.3,
}
_QWEN = _COMMON | {
    "hidden_act": "silu",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": CONV,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "norm_topk_prob": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "granite": _GRANITE,
    "granite_moe": _GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16},
    "qwen3_5": _QWEN | {"model_type": "qwen3_5_text"},
    "qwen3_5_moe": _QWEN | _MOE | {"model_type": "qwen3_5_moe_text"},
    "qwen3_next": _QWEN | _MOE | {"model_type": "qwen3_next", "mlp_only_layers": [1], "decoder_sparse_step": 1},
    "gemma3": _COMMON
    | {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 8,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "lfm2": _COMMON
    | {
        "model_type": "lfm2",
        "norm_eps": 1e-6,
        "block_auto_adjust_ff_dim": False,
        "conv_bias": False,
        "conv_L_cache": CONV,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
}
"""One of each architecture; every kind of state is in one of them."""
ARCHITECTURES = tuple(CONFIGS)
KINDS = ("granite", "qwen3_5", "gemma3", "lfm2")
"""One architecture for each kind of state: Mamba-2, Gated DeltaNet, window, short convolution."""


def write_folder(folder: Path, name: str, **overrides: Any) -> Path:
    """A model folder for ``load_format`` random."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | overrides))
    return folder


@cache
def tiny_model(name: str, rig: Rig = REFERENCE) -> Model:
    """Random weights, the same on every rig, not bound to an arena. SENSITIVE: states decay slowly, so that what was
    lost long ago shows.

    The path of a model folder gives that model, so that every test here can be run with a real one.
    """
    if name not in (*CONFIGS, "braid"):
        config = read_config(Path(name))
        model = build_model(config, dtype=rig.dtype, page_size=PAGE, kernels=rig.kernels)
        return fill_model(model, Path(name), rig.device)
    if name == "braid":
        model = build_braid(CONFIGS, Build(rig.dtype, torch.float32, rig.kernels), PAGE)
    else:
        model = build_model(CONFIGS[name], dtype=rig.dtype, page_size=PAGE, kernels=rig.kernels)
    fill_model(model, None, CPU, seed=1)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("A_log"):
            parameter.data.uniform_(-3.0, -1.0, generator=torch.Generator().manual_seed(2))
    return model.to(rig.device)


def tiny_engine(
    name: str = "granite",
    *,
    budget: int = BUDGET,
    max_seqs: int = 6,
    max_model_len: int = 96,
    padding: int = PADDING,
    overlap: bool = False,
    poison: Poison = Poison.NAN,
    slab_bytes: int | None = None,
    slabs: int | None = None,
    reuse: bool = False,
    interval: int = 16,
    grammars: Grammars | None = None,
    audit_rate: float = 0.0,
    rig: Rig = REFERENCE,
) -> Engine:
    """An engine with memory for all it may run; ``slabs`` of ``slab_bytes`` (default: the largest unit) for less."""
    kernels = copy.copy(rig.kernels)
    model = copy.deepcopy(tiny_model(name, rig), {id(rig.kernels): kernels})
    groups = model.plan.groups
    unit = slab_bytes or max(group.unit_bytes for group in groups)
    if slabs is None:
        tokens = -(-max_model_len // PAGE) + 1
        demand = (tokens * g.unit_bytes if g.paged else g.units_per_slot * g.unit_bytes for g in groups)
        slabs = (max_seqs + 1) * (2 * sum(demand) // unit + len(groups))
    arena = Arena(slabs * unit, rig.device)
    ledger = SmallSlabs(arena, groups, poison, unit)
    model.bind(bind_states(model.plan, arena))
    tables = RowTables(groups, ledger.reserved, max_seqs, max_model_len)
    copier = UnitCopier(arena, groups, kernels.copy_units, kernels.checksum_units)
    runner = ModelRunner(
        model,
        kernels,
        tables,
        rig.device,
        copier=copier,
        decode_padding=padding,
        eos_token_ids=[EOS],
        grammars=grammars,
    )
    runner.graphs.piece_tokens = rig.piece_tokens
    limits = SchedulerLimits(budget, max_seqs, max_model_len)
    cache = PrefixCache(ledger, copier, Placement(interval), Stats(), fingerprint=name, enabled=reuse)
    return Engine(Scheduler(limits, cache), runner, [EOS], overlap, audit_rate)


class SmallSlabs(Ledger):
    """A ledger whose slabs are as small as the test wants them."""

    def __init__(self, arena: Arena, groups: Any, poison: Poison, slab_bytes: int) -> None:
        from plait_engine.state import ledger as module

        chosen, module.choose_slab_bytes = module.choose_slab_bytes, lambda _: slab_bytes
        try:
            super().__init__(arena, groups, poison)
        finally:
            module.choose_slab_bytes = chosen


# Requests and answers ------------------------------------------------------------------------------------------------


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random token ids, no end token among them."""
    rng = random.Random(seed * 1000 + length)
    return tuple(rng.randrange(3, VOCAB) for _ in range(length))


def greedy(max_tokens: int = 6, **more: Any) -> SamplingParams:
    """With the log-probability of every token of the vocabulary, so that logits are compared and not text."""
    return SamplingParams(
        **{"temperature": 0.0, "max_tokens": max_tokens, "logprobs": VOCAB, "ignore_eos": True} | more
    )


def seeded(max_tokens: int = 6, seed: int = 0, **more: Any) -> SamplingParams:
    return greedy(max_tokens, **{"temperature": 1.0, "seed": seed} | more)


def ask(id: str, prompt: Seq[int], sampling: SamplingParams | None = None, **more: Any) -> Request:
    return Request(id=id, prompt=tuple(prompt), sampling=sampling or greedy(), **more)


@dataclass
class Answer:
    """All that one sequence gave."""

    tokens: list[int] = field(default_factory=list)
    entries: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: int | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
    deltas: int = 0

    def take(self, delta: Delta) -> None:
        assert self.finish is None, "a delta came after the end"
        assert delta.prompt_logprobs is None or not self.deltas, "prompt log-probabilities come first or not at all"
        assert delta.logprobs is None or len(delta.logprobs) == len(delta.token_ids)
        self.deltas += 1
        self.tokens.extend(delta.token_ids)
        self.entries.extend(delta.logprobs or ())
        self.finish, self.stop_reason, self.error = delta.finish_reason, delta.stop_reason, delta.error
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs

    @property
    def logprobs(self) -> Tensor:
        """``[tokens, vocab]`` by token id."""
        return table_of(self.entries)


def table_of(entries: Iterable[TokenLogprobs | None]) -> Tensor:
    rows = []
    for entry in entries:
        if entry is not None:
            row = torch.full((max(VOCAB, len(entry.top)),), math.nan)
            row[[token for token, _ in entry.top]] = torch.tensor([value for _, value in entry.top])
            rows.append(row)
    return torch.stack(rows) if rows else torch.empty(0, VOCAB)


Answers = dict[tuple[str, int], Answer]


class Load:
    """Drives an engine by hand: add, abort and step as the test likes; collects answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: Answers = {}
        self.steps = 0

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.engine.add(request)
            self.answers |= {(request.id, i): Answer() for i in range(request.n)}

    def step(self) -> list[Delta]:
        deltas = self.engine.step()
        self.steps += 1
        for delta in deltas:
            self.answers[delta.request_id, delta.index].take(delta)
        return deltas

    def finish(self, each_step: Callable[[], None] = lambda: None, most: int = 3000) -> Answers:
        while not self.engine.idle:
            assert self.steps < most, "the engine does not come to an end"
            each_step()
            self.step()
        books(self.engine)
        return self.answers


def run(engine: Engine, *requests: Request) -> Answers:
    load = Load(engine)
    load.add(*requests)
    return load.finish()


def books(engine: Engine) -> None:
    """BOOKS: at idle nothing runs, waits or is owned, and every row is free."""
    engine.check()
    if engine.idle:
        scheduler = engine.scheduler
        assert not scheduler.running
        assert not len(scheduler.waiting)
        assert sorted(scheduler._free_rows) == list(range(scheduler.limits.max_seqs))
        engine.ledger.check(engine.scheduler.cache.owned())


@cache
def _oracle_engine(name: str, rig: Rig) -> Engine:
    return tiny_engine(name, budget=10**4, max_seqs=1, max_model_len=256, padding=1, rig=rig)


_known: dict[bytes, list[Answer]] = {}


def oracle(name: str, request: Request, rig: Rig = REFERENCE) -> list[Answer]:
    """ORACLE: the request alone in an engine, a sequence at a time, prompts in one chunk, nothing padded, nothing
    recorded."""
    key = msgspec.json.encode((name, str(rig.alone), request.prompt, request.sampling, request.n))
    if key not in _known:
        answers = run(_oracle_engine(name, rig.alone), request)
        _known[key] = [answers[request.id, index] for index in range(request.n)]
    return _known[key]


def assert_same(answer: Answer, expected: Answer, close: float = CLOSE, tied: float = TIE) -> None:
    """Logits first, then tokens, up to the first TIE of the expected answer: behind it, another path is right too."""
    ties = (i for i, e in enumerate(expected.entries) if len(e.top) > 1 and e.top[0][1] - e.top[1][1] < tied)
    tie = next(ties, len(expected.tokens))
    got, want = answer.logprobs[: tie + 1], expected.logprobs[: tie + 1]
    assert bool(got.isfinite().all())
    torch.testing.assert_close(got, want, rtol=0, atol=close)
    assert answer.tokens[:tie] == expected.tokens[:tie]
    if tie == len(expected.tokens):
        assert answer.tokens == expected.tokens
        assert (answer.finish, answer.stop_reason) == (expected.finish, expected.stop_reason)


def check_against_oracle(name: str, answers: Answers, requests: Iterable[Request], close: float = CLOSE) -> None:
    for request in requests:
        for index in range(request.n):
            answer = answers[request.id, index]
            assert answer.error is None
            assert_same(answer, oracle(name, request)[index], close)


def sequences(engine: Engine) -> list[Sequence]:
    return [*engine.scheduler.running, *engine.scheduler.waiting]
