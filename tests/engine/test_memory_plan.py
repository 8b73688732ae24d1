"""CASES 36: what was planned before loading is what is allocated, and what steps need at most."""

from pathlib import Path
from typing import Any

import pytest
import torch

from plait_engine import build
from plait_engine.activations import PeakBytes
from plait_engine.build import Built, build_engine, make_plan
from plait_engine.config import ConfigError, EngineConfig, LoadFormat
from plait_engine.engine import CannotFit
from plait_engine.memory_plan import left_over
from plait_engine.models.layers.experts import Router
from plait_engine.request import FinishReason
from plait_engine.state import pools
from plait_engine.state.sequence_state import SequenceState
from plait_kernels.select import Kernels
from tests.engine.tiny import ARCHITECTURES, Load, ask, books, greedy, prompt_of, write_folder

LENGTH, BUDGET, SEQS = 192, 64, 6
"""The longest prompt ends with a full chunk."""
WIDER = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "mamba_n_heads": 8, "intermediate_size": 160}
WIDER |= {"vocab_size": 512, "max_position_embeddings": LENGTH, "layer_types": None}

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture(autouse=True)
def reference_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other kernels need is theirs to keep below the references' needs."""
    monkeypatch.setattr(build, "select", lambda *_: Kernels())


def config_of(folder: Path, name: str, **more: Any) -> EngineConfig:
    wider = {key: value for key, value in WIDER.items() if value is not None}
    settings = {"max_batch_tokens": BUDGET, "max_seqs": SEQS, "page_size": 4, "memory_bytes": 1 << 26}
    return EngineConfig(
        model=str(write_folder(folder, name, **wider)), load_format=LoadFormat.RANDOM, **settings | more
    )


def crowd_experts(built: Built) -> None:
    """All tokens choose the same experts: the most that a step can need must be seen."""
    for module in built.engine.runner.model.modules():
        if isinstance(module, Router):
            module.weight.data.zero_()


def measured_peak(built: Built) -> int:
    """Of steps that a request can bring about: long prompts with scores, alone and beside as many decodes as can be."""
    engine, length = built.engine, built.info.max_model_len
    everything = {"logprobs": 5, "temperature": 1.0, "seed": 1, "top_k": 9, "top_p": 0.9, "min_p": 0.01}
    everything |= {"min_tokens": 1, "prompt_logprobs": 5, "stop_token_ids": (3,)}
    load = Load(engine)
    with PeakBytes() as measured:
        load.add(ask("long", prompt_of(length), greedy(0, **everything | {"min_tokens": 0})))
        load.finish()
        rest = 2 * -(-length * built.info.max_seqs // BUDGET)
        more = greedy(rest, **everything)
        decodes = [ask(f"d{i}", prompt_of(length - rest), more) for i in range(built.info.max_seqs - 1)]
        load.add(*decodes)
        while any(not load.answers[request.id, 0].tokens for request in decodes):
            load.step()
        load.add(ask("beside", prompt_of(length - 1), greedy(1, **everything)))
        load.finish()
    return measured.peak


@every_architecture
def test_weights_and_arena_are_allocated_to_the_byte_as_planned(name: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, name)
    planned = make_plan(config).memory
    built = build_engine(config)
    model = built.engine.runner.model
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.state_dict().values()}
    storages |= {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.buffers()}
    assert sum(storages.values()) == planned.weights_bytes
    assert built.engine.ledger.arena.bytes.untyped_storage().nbytes() == planned.arena_bytes
    total = planned.weights_bytes + planned.activation_bytes + planned.arena_bytes
    assert config.memory_bytes is not None
    assert config.memory_bytes - planned.slab_bytes < total <= config.memory_bytes


@every_architecture
def test_no_step_needs_more_than_was_planned_nor_much_less(name: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, name)
    planned = make_plan(config).memory.activation_bytes
    built = build_engine(config)
    crowd_experts(built)
    peak = measured_peak(built)
    assert peak <= planned <= 1.15 * peak


@pytest.mark.parametrize("name", ["granite", "gemma3"])
def test_a_small_budget_starts_with_fewer_sequences_and_says_why(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "SLAB_TARGET_BYTES", 1)
    one, few, all = (make_plan(config_of(tmp_path, name, max_seqs=n)).memory for n in (1, 5, BUDGET))
    each = sum(1 if group.paged else group.units_per_slot for group in one.groups)
    config = config_of(
        tmp_path,
        name,
        max_seqs=BUDGET,
        memory_bytes=few.weights_bytes + few.activation_bytes + 6 * each * few.slab_bytes,
    )
    planned, built = make_plan(config).memory, build_engine(config)
    assert 5 <= built.info.max_seqs == planned.max_seqs < BUDGET
    assert planned.bound == f"max_seqs is {BUDGET}; memory holds {planned.max_seqs}"
    assert planned.bound in built.info.report
    assert few.activation_bytes <= planned.activation_bytes < all.activation_bytes, "planned for those that run"
    load = Load(built.engine)
    load.add(*(ask(f"r{i}", prompt_of(3), greedy(2, logprobs=None)) for i in range(8)))
    assert [len(answer.tokens) for answer in load.finish().values()] == [2] * 8


def test_a_context_that_memory_does_not_hold_is_shortened_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "SLAB_TARGET_BYTES", 1)
    plan = make_plan(config_of(tmp_path, "granite", max_seqs=1)).memory
    assert f"length       {LENGTH} tokens (as the model allows)" in plan.describe()
    budget = plan.weights_bytes + plan.activation_bytes + 9 * plan.slab_bytes
    built = build_engine(config_of(tmp_path, "granite", max_seqs=1, memory_bytes=budget))
    length = built.info.max_model_len
    assert 10 < length < LENGTH
    assert f"length       {length} tokens (memory holds no {LENGTH})" in built.info.report
    load = Load(built.engine)
    load.add(ask("longest", prompt_of(3), greedy(length - 3, logprobs=None)))
    assert load.finish()["longest", 0].finish is FinishReason.LENGTH
    with pytest.raises(CannotFit, match=f"maximum context length is {length}"):
        load.add(ask("longer", prompt_of(length), greedy(1)))


def test_a_long_context_needs_no_gigabytes_for_scores(tmp_path: Path) -> None:
    wide = {"num_attention_heads": 32, "head_dim": 2, "max_position_embeddings": 131_072}
    folder = write_folder(tmp_path, "granite", **wide)
    config = EngineConfig(model=str(folder), memory_bytes=1 << 30, load_format=LoadFormat.RANDOM)
    assert make_plan(config).memory.activation_bytes < 400 << 20


def test_more_sequences_than_a_step_has_tokens_are_clamped_and_said(tmp_path: Path) -> None:
    memory = make_plan(config_of(tmp_path, "granite", max_seqs=100)).memory
    assert memory.max_seqs == BUDGET
    assert memory.bound == f"max_seqs is 100; a step of {BUDGET} tokens has room for no more"


@every_architecture
def test_the_concurrency_that_is_told_is_what_fits(name: str, tmp_path: Path) -> None:
    """``concurrency(n)`` sequences of n tokens are admitted at once; one more is not."""
    config = config_of(tmp_path, name, memory_bytes=12 << 20, max_seqs=BUDGET)
    built = build_engine(config)
    memory = make_plan(config).memory
    ledger = built.engine.ledger
    for tokens in (1, 20, LENGTH - 1):
        told = memory.concurrency(tokens)
        held = []
        while (units := ledger.take(_demand(built, tokens))) is not None:
            held.append(units)
        assert len(held) == told
        for units in held:
            for group, addresses in units.items():
                ledger.give_back(group, addresses)
    books(built.engine)


def _demand(built: Built, tokens: int) -> Any:
    return SequenceState(built.engine.ledger.groups).admission_demand(tokens, BUDGET)


def test_too_little_memory_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(build, "allocate", loaded)
    plan = make_plan(config_of(tmp_path, "granite")).memory
    for budget in (1, plan.weights_bytes, plan.weights_bytes + plan.activation_bytes + plan.slab_bytes):
        with pytest.raises(ConfigError, match=r"holds no running sequence.* raise --memory"):
            build_engine(config_of(tmp_path, "granite", memory_bytes=budget))


def test_planning_allocates_nothing(tmp_path: Path) -> None:
    plan = make_plan(config_of(tmp_path, "granite"))
    assert all(parameter.device == torch.device("meta") for parameter in plan.model.parameters())


def test_what_a_warmed_up_engine_took_beside_its_plan_is_told_and_too_little_left_is_said(tmp_path: Path) -> None:
    plan = make_plan(config_of(tmp_path, "granite")).memory
    planned = plan.weights_bytes + plan.arena_bytes + plan.activation_bytes
    before = planned + (100 << 30)
    roomy, tight = (left_over(plan, before, free << 30) for free in (60, 1))
    assert roomy == "memory: 40.00 GiB taken beside the plan (graphs, libraries, kernels), 60.00 GiB free"
    assert tight.startswith("memory: 99.00 GiB taken beside the plan")
    assert "set --memory to" in tight
