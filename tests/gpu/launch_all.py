"""Launches an op's Triton kernels on small shapes, in a process of its own, for compute-sanitizer to look at.

    python -m tests.gpu.launch_all OP [OP ...]

Results are not compared here: the other tests do that. ``engine`` stands for steps of a tiny engine with every kind of
state, with prefix reuse, so that checkpoints are left, restored and evicted.
"""

import sys
from collections.abc import Callable, Iterable, Iterator

import torch

from tests.kernels.triton_world import DEVICE  # isort: skip  (before anything imports triton)
from benchmarks.gpu import cases
from benchmarks.gpu.cases import BF16, FP32, OPS, Attention, Case, Delta, Mamba
from benchmarks.gpu.world import Part, World
from plait_engine.state.poison import Poison
from plait_kernels.sampling import Entries, Penalties
from tests.engine.reuse.test_property import play
from tests.engine.rig import Rig
from tests.kernels.scans import Conv, Scan, Ssd
from tests.kernels.scans import Delta as TinyDelta
from tests.kernels.test_scans import Stage
from tests.kernels.test_triton_scans import MIXED
from tests.kernels.triton_world import triton_kernels
from tests.kernels.world import Piece

EDGES = tuple(Part(history, new) for history, new in ((0, 1), (3, 2), (0, 15), (16, 16), (1, 17), (0, 63), (5, 65)))
"""Around pages of 16 and blocks of 64."""
DECODES, HISTORY = 3, 66


def emitting(scan: Scan) -> None:
    """Rows that leave states on the way, in fp32 and with 16-bit inputs; poison beside them."""
    kernels = triton_kernels()
    stage = Stage(scan, [Piece(5, 1), Piece(0, 1)], MIXED)
    stage.check(kernels, stage.inputs())
    stage = Stage(scan, [Piece(5, 1)], MIXED[:2])
    stage.check(kernels, stage.inputs(torch.bfloat16), tolerance=1e-2)


def attention() -> Iterator[Case]:
    for shape in (Attention(4, 2, 64), Attention(6, 2, 64, window=20), Attention(3, 1, 40)):
        yield shape.case("small", "decode", DECODES, HISTORY)
        yield shape.case("small", "mixed", DECODES, HISTORY, EDGES)
    if DEVICE.type == "cuda":  # enough tiles for the kernel that is Hopper's own
        yield Attention(16, 4, 256).case("M1", "prefill", 0, 0, (Part(17, 2000),))


def convolution() -> Iterator[Case]:
    yield cases.convolution("small", "mixed", 100, DECODES, EDGES)


def delta() -> Iterator[Case]:
    for state in (FP32, BF16):
        yield Delta(1, 2, 32).rule("mixed", DECODES, EDGES, state)


def mamba() -> Iterator[Case]:
    for state in (FP32, BF16):
        yield Mamba(4, 16, 32).ssd("mixed", DECODES, EDGES, state)


def elementwise(op: str) -> Iterator[Case]:
    for rows in (1, 3, 17):
        yield from (case for case in cases.elementwise("small", rows, 80, 48) if case.op == op)


def gated_norms() -> Iterator[Case]:
    for norm_first in (True, False):
        yield cases.gated_norm("small", 5, 96, 32, norm_first)


def samplings() -> Iterator[Case]:
    for kind in ("greedy", "open", "limited"):
        yield cases.sampling("small", 5, 5003, kind)


def products() -> Iterator[Case]:
    for rows in (1, 3, 16, 17, 70):
        yield cases.product("small", rows, 321, 130)
        yield cases.product("small", rows, 64, 48, head=True)


def norm(world: World) -> None:
    OPS["rms_norm"](world.normal(5, 3, 80), world.normal(80), 1e-6)


def rotary(world: World) -> None:
    positions = torch.tensor([0, 3, 30, 2], device=world.device)
    OPS["rotary"](world.normal(4, 3, 16), positions, world.normal(31, 12, dtype=FP32))


def penalise(world: World) -> None:
    rows, tokens = (torch.tensor(ids, device=world.device) for ids in ([0, 2, 2], [5, 0, 5002]))
    entries = Entries(rows, tokens, world.normal(3, dtype=FP32))
    OPS["penalise"](world.normal(3, 5003, dtype=FP32), Penalties(entries, entries, entries))


def engine(_: World) -> None:
    """A few steps with a hit and evictions; under the interpreter, where each takes seconds, only the first ones."""
    seed, turns = (4, 12) if DEVICE.type == "cuda" else (1, 1)
    world = play("braid", seed, turns, False, 20, Poison.NAN, rig=Rig(DEVICE.type, "triton"))
    assert world.load.steps
    assert world.effective or DEVICE.type == "cpu"


def run(made: Iterable[Case]) -> Callable[[World], None]:
    kept = list(made)

    def launch(world: World) -> None:
        for case in kept:
            case.run(case.make(world))

    return launch


def both(made: Iterable[Case], scan: Scan) -> Callable[[World], None]:
    first = run(made)

    def launch(world: World) -> None:
        first(world)
        emitting(scan)

    return launch


LAUNCHES: dict[str, Callable[[World], None]] = {
    "linear": run(products()),
    "rms_norm": norm,
    "add_rms_norm": run(elementwise("add_rms_norm")),
    "gated_rms_norm": run(gated_norms()),
    "gated_activation": run(elementwise("gated_activation")),
    "rotary": rotary,
    "paged_attention": run(attention()),
    "causal_conv": both(convolution(), Conv(channels=12)),
    "ssd": both(mamba(), Ssd(heads=2, head_dim=8, groups=1, state=16)),
    "gated_delta_rule": both(delta(), TinyDelta(key_heads=1, value_heads=2, key_dim=8, value_dim=16)),
    "moe": run(cases.experts(rows, 48, 32, 8, 2) for rows in (1, 20)),
    "sample": run(samplings()),
    "penalise": penalise,
    "logprobs": run([cases.scores("small", 5, 5003)]),
    "checksum_units": run([cases.checksums(3, 776 * 4), cases.checksums(1, 64 << 10)]),
    "copy_units": run([cases.copies(3, 776 * 4), cases.copies(1, 64 << 10)]),
    "qk_rotary": run(cases.heads("small", rows, Attention(4, 2, 32), 16) for rows in (1, 17)),
    "gdn_step": run(Delta(1, 2, 32).step("step", DECODES, state) for state in (FP32, BF16)),
    "mamba2_step": run(Mamba(4, 16, 32).step("step", DECODES, state) for state in (FP32, BF16)),
    "engine": engine,
}
"""By the name of the op."""


def main(ops: list[str]) -> None:
    torch.manual_seed(0)
    for op in ops:
        LAUNCHES[op](World(DEVICE))
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        print("launched", op, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
