"""The benchmark of prefix reuse: its traces, its rules, and what the policies promise one another."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from benchmarks.prefix_reuse.__main__ import main
from benchmarks.prefix_reuse.geometry import NAMED, PAGES, ROWS, Geometry, of_model
from benchmarks.prefix_reuse.setups import SETUPS, run
from benchmarks.prefix_reuse.simulation import Simulation
from benchmarks.prefix_reuse.traces import BLOCK, KINDS, TraceRequest, expand, generate, read
from plait_engine.state.eviction import LearnedEvictor

SMALL = Geometry("small", 1024, 1 << 20, 1024, 1e9, 1e4)
"""Half a MiB a block, one MiB a checkpoint."""
app = Typer()
app.command()(main)


def ask(seconds: float, *ids: int, tail: int = 10) -> TraceRequest:
    return TraceRequest(seconds, len(ids) * BLOCK + tail, 1, (*ids, -1))


def skipped(policy: str, trace: list[TraceRequest], budget: float = float("inf"), page_size: int = BLOCK) -> int:
    return run(SETUPS[policy], SMALL, budget, trace, page_size).skipped // BLOCK


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_trace_is_the_same_every_time_and_in_order(kind: str) -> None:
    trace = generate(kind, 300)
    assert trace == generate(kind, 300)
    assert trace != generate(kind, 300, seed=1)
    assert [r.seconds for r in trace] == sorted(r.seconds for r in trace)
    assert all(len(r.blocks()) == len(r.ids) - 1 and r.prompt % BLOCK > 0 for r in trace)


def test_equal_ids_expand_to_equal_tokens_and_others_differ_at_once() -> None:
    a, b = expand((1, 2, 3)), expand((1, 2, 4))
    assert a.dtype == np.int32
    assert (a >= 0).all()
    assert (a[: 2 * BLOCK] == b[: 2 * BLOCK]).all()
    assert a[2 * BLOCK] != b[2 * BLOCK]


def test_a_trace_file_is_read_with_its_partial_block_left_out(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    row = {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 6]}
    file.write_text(json.dumps(row) + "\n\n")
    (request,) = read(file)
    assert (request.seconds, request.blocks()) == (1.5, (4, 5))


def test_geometries_have_the_bytes_they_are_named_for() -> None:
    for geometry in NAMED.values():
        pages, rows = geometry.groups(BLOCK)
        assert pages.unit_bytes == BLOCK * geometry.token_bytes
        assert rows.unit_bytes * rows.units_per_slot == pytest.approx(geometry.checkpoint_bytes, rel=2e-3)


def test_a_geometry_is_read_from_a_config(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_5_text",
        "hidden_act": "silu",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "intermediate_size": 128,
        "vocab_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    geometry = of_model(file)
    assert geometry.token_bytes == 2 * 2 * 16 * torch.bfloat16.itemsize
    assert geometry.checkpoint_bytes >= 3 * 4 * 16 * 16 * 4


def test_the_next_turn_resumes_at_the_end_of_the_last() -> None:
    assert skipped("plait", [ask(0, 1, 2, 3), ask(60, 1, 2, 3, 4)]) == 3


@pytest.mark.parametrize("policy", ["plait", "lru", "gdsf", "flops", "blocks"])
def test_a_shared_prefix_is_skipped_from_the_third_prompt_on(policy: str) -> None:
    assert skipped(policy, [ask(0, 1, 2, 3, 9), ask(1, 1, 2, 4, 9), ask(2, 1, 2, 5, 9)]) == 2


def test_blocks_do_not_see_what_is_shorter_than_they_are() -> None:
    trace = [ask(i, 1, 10 + 2 * i, 11 + 2 * i) for i in range(4)]
    assert skipped("blocks", trace) == 0
    assert skipped("plait", trace) == 2


def test_checkpoints_at_ends_alone_miss_shared_prefixes() -> None:
    assert skipped("split", [ask(i, 1, 2, 10 + i) for i in range(4)]) == 0


def test_memory_remembers_a_branch_whose_pages_are_gone() -> None:
    shared = tuple(range(1, 5))
    others = [ask(1 + i, *range(100 + 9 * i, 108 + 9 * i)) for i in range(30)]
    trace = [ask(0, *shared, 50), *others, ask(40, *shared, 51), ask(41, *shared, 52)]
    assert skipped("plait", trace, budget=12e6) == 4
    assert skipped("lru", trace, budget=12e6) == 0


def test_a_repeated_prompt_is_known_but_for_its_last_token() -> None:
    totals = run(SETUPS["plait"], SMALL, 1e9, [TraceRequest(i, BLOCK, 1, (7,)) for i in range(3)])
    assert totals.skipped == 2 * (BLOCK - 1)


@pytest.mark.parametrize("policy", SETUPS)
def test_every_cache_keeps_its_books_and_its_budget(policy: str) -> None:
    trace = generate("mixture", 60)
    setup = SETUPS[policy]
    geometry = SMALL.padded_to_blocks() if setup.block_aligned else SMALL
    grain = geometry.block_tokens if setup.block_aligned else 1
    largest = max(r.prompt for r in trace)
    make = setup.make(geometry, trace)
    simulation = Simulation(geometry, 80e6, largest, make, max(BLOCK, grain), grain, setup.branches, setup.shares)
    for request in trace:
        simulation.serve(request)
        assert simulation.ledger.can_take(simulation.room)
    simulation.tree.check()
    simulation.ledger.check(simulation.tree.owned())
    cached = sum(
        len(units) * simulation.ledger.groups[group].unit_bytes
        for owned in simulation.tree.owned()
        for group, units in owned.items()
        if group in (PAGES, ROWS)
    )
    assert 5e6 < cached <= 1.1 * 80e6


@pytest.mark.parametrize("kind", ["chats", "shared-prompts", "agents", "documents"])
def test_expected_reuse_is_no_worse_than_recency_on_traffic_of_any_kind(kind: str) -> None:
    trace = generate(kind, 240)
    budget = 0.05 * sum(len(r.blocks()) for r in trace) * BLOCK * SMALL.token_bytes
    ours, recency = (run(SETUPS[p], SMALL, budget, trace).effective_hit_rate for p in ("plait", "lru"))
    assert ours >= recency - 0.5


def test_smaller_pages_hit_what_larger_ones_hit() -> None:
    trace = generate("chats", 120)
    assert skipped("plait", trace, 200e6, page_size=64) >= 0.9 * skipped("plait", trace, 200e6)


def test_the_learned_policy_is_what_the_engine_uses() -> None:
    trace = [ask(0, 1)]
    simulation = Simulation(SMALL, 1e7, 1000, SETUPS["plait"].make(SMALL, trace))
    assert isinstance(simulation.evictor, LearnedEvictor)
    totals = run(SETUPS["plait"], SMALL, 1e7, generate("batch", 60))
    assert set(totals.evictions) <= {"leaf, capacity", "checkpoint, capacity", "leaf, unreachable"}


def test_the_program_prints_a_table_and_writes_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--seconds", "60", "--geometry", "B", "--budgets", "1,inf", "--policies", "plait,lru"]
    result = CliRunner().invoke(app, [*arguments, "--trace", str(tmp_path / "absent"), "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "generated instead" in result.output
    figures = json.loads(file.read_text())
    assert [row["policy"] for row in figures["rows"]] == ["plait", "lru"]
    assert all(r["lookup_us"] > 0 for row in figures["rows"] for r in row["results"])
