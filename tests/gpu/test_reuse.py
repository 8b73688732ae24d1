"""The property test of prefix reuse with Triton kernels and captured steps: a hit gives the answer of a cold run.

Cold runs are made on the same device, in steps that are neither padded nor captured. fp32 is compared as closely as on
a CPU: no kernel computes in TF32, so only the order of sums differs.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from plait_engine.state.poison import Poison
from tests.engine.reuse.test_property import LOADS, play
from tests.engine.rig import Rig
from tests.gpu.rigs import COMPILED, TRITON, needs_gpu, on_cpu, on_gpu

EXAMPLES = 10
"""Of each test; without shrinking, which would run for many minutes."""
SHARES = [
    *(pytest.param("braid", TRITON, id=f"braid-{share}", marks=needs_gpu) for share in range(8)),
    *(pytest.param(name, TRITON, id=name, marks=needs_gpu) for name in ("granite", "gemma3")),
    pytest.param("braid", COMPILED, id="braid-cpu"),
]
"""Run side by side, each with examples of its own."""


@pytest.mark.parametrize(("name", "rig"), SHARES)
def test_a_hit_gives_the_answer_of_a_cold_run(name: str, rig: Rig) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(**LOADS)
    def property_holds(**load: Any) -> None:
        play(name, turns=40, rig=rig, **load)

    property_holds()


@pytest.mark.parametrize("rig", [*on_cpu(COMPILED), *on_gpu(TRITON)])
def test_such_loads_do_hit_evict_restore_and_replay(rig: Rig) -> None:
    """PAIRED: the property would hold of a cache that never finds anything, and of steps that are never replayed."""
    roomy = play("braid", 1, 80, True, 200, Poison.NAN, rig=rig)
    tight = play("braid", 2, 60, False, 14, Poison.NAN, rig=rig)
    tiered = play("braid", 7, 120, False, 40, Poison.NAN, tiered=True, rig=rig)
    assert roomy.effective > 100
    assert sum(tight.engine.stats.counters["plait_evictions_total"].values())
    restores = tiered.engine.counters()["plait_state_restores_total"]
    assert any(count for labels, count in restores.items() if "tier=slow" in labels)
    recorded = [shape for shape, recording in roomy.engine.runner.graphs._recorded.items() if recording is not None]
    assert any(not shape.pieces for shape in recorded)
    assert any(shape.pieces for shape in recorded) == bool(rig.piece_tokens)
