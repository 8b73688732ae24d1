"""Which kernels random loads ask a compiler for that a rehearsal did not: ``python -m tests.engine.runner.asked_kernels
MODEL PIECE_TOKENS SEED`` prints them, one a line, and how many the rehearsal asked for; ``unrehearsed`` leaves it out;
with ``hopper`` the model has heads and pages that Hopper's own attention takes.

Nothing is compiled and nothing launched: launches only note what Triton would tell apart, for an H200, and every op
gives zeros. Each key of a table of configurations has a configuration of its own here, as a table might have it. A
process of its own, because elsewhere Triton may be interpreted.
"""

import logging
import random
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from plait_engine.engine import Engine
from plait_engine.request import Request, SamplingParams
from plait_engine.runner.padding_rows import PaddingRows
from plait_engine.runner.rehearsal import rehearse
from plait_engine.runner.warm_up import copies
from plait_engine.state.poison import Poison
from plait_kernels import triton_math, tuning
from plait_kernels.paged_attention import hopper
from plait_kernels.qk_rotary.triton import qk_rotary
from plait_kernels.select import Kernels
from plait_kernels.triton_ops import IMPLEMENTATIONS
from tests.engine import tiny
from tests.engine.rig import Again, Rig
from tests.engine.tiny import CPU, VOCAB, tiny_engine

TURNS = 120
LONGEST, BUDGET = 1500, 1100
BEGINNINGS = (5, 40, 300, 900)
HOPPER = {"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64}
"""Small enough that some steps have tiles for Hopper's attention, and some have not."""


class Asked:
    """Stands in for Triton's launcher."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        backend = make_backend(GPUTarget("cuda", 90, 32))
        self._binder = cache(lambda kernel: create_function_from_signature(kernel.signature, kernel.params, backend))

    def install(self) -> None:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
            del grid, warmup
            options["debug"], options["instrumentation_mode"] = False, ""
            _, told, left = self._binder(kernel)(*args, **options)
            names = [parameter.name for parameter in kernel.params]
            self.seen[f"{kernel.__name__} {dict(zip(names, told, strict=True))} {left}"] = None

        JITFunction.run = run


class Zeros(Rig):
    @property
    def kernels(self) -> Kernels:
        return _zeros(self.implementation)


@cache
def _zeros(implementation: str) -> Kernels:
    ops = {**IMPLEMENTATIONS, "qk_rotary": qk_rotary}
    if implementation == "hopper":
        ops["paged_attention"] = hopper.paged_attention
    return Again(**{name: _zero(op) for name, op in ops.items()})


def _zero(op: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(op)
    def zeros(*args: Any, **options: Any) -> Any:
        result = op(*args, **options)
        for part in result if isinstance(result, tuple) else (result,):
            for tensor in [getattr(part, f.name) for f in fields(part)] if is_dataclass(part) else [part]:
                if isinstance(tensor, Tensor) and tensor is not args[0]:
                    tensor.zero_()
        return result

    return zeros


def a_configuration_for_each_key() -> None:
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}

    def config(tunable: tuning.Tunable, device: torch.device, *key: int) -> dict[str, int]:
        del device
        return {**tunable.default, "num_stages": numbers.setdefault((tunable.name, key), 1 + len(numbers))}

    tuning.Tunable.config = config  # type: ignore[method-assign,assignment]
    triton_math._multiprocessors[CPU] = 132


def play(engine: Engine, rng: random.Random) -> None:
    """What clients may ask for, in any company: with beginnings that are cached or not, and in all ways to sample."""
    beginnings = [[rng.randrange(3, VOCAB) for _ in range(size)] for size in BEGINNINGS]
    for turn in range(TURNS):
        for number in range(rng.choice((0, 0, 1, 1, 2, 9))):
            begin = rng.choice(beginnings) if rng.random() < 0.6 else []
            begin = begin[: rng.randrange(len(begin) + 1)] if rng.random() < 0.5 else begin
            own = [rng.randrange(3, VOCAB) for _ in range(rng.choice((1, 2, 3, 8, 15, 16, 17, 70, 300)))]
            engine.add(
                Request(
                    id=f"{turn} {number}",
                    prompt=(*begin, *own),
                    sampling=sampling(rng),
                    n=rng.choice((1, 1, 1, 3)),
                    marks=(len(begin),) if begin and rng.random() < 0.3 else (),
                )
            )
        engine.step()
        if engine.idle:
            engine.audit()
    while not engine.idle or engine.audit():
        engine.step()


def sampling(rng: random.Random) -> SamplingParams:
    length = {"max_tokens": rng.choice((1, 2, 5, 20)), "ignore_eos": True}
    if rng.random() < 0.4:
        return SamplingParams(temperature=0.0, **length)  # type: ignore[arg-type]
    return SamplingParams(
        temperature=rng.choice((0.0, 0.7, 1.0)),
        top_k=rng.choice((0, 0, 7)),
        top_p=rng.choice((1.0, 0.9)),
        min_p=rng.choice((0.0, 0.05)),
        presence_penalty=rng.choice((0.0, 0.5)),
        repetition_penalty=rng.choice((1.0, 1.2)),
        min_tokens=rng.choice((0, 1)),
        logprobs=rng.choice((None, None, 0, 1, 5, 20)),
        prompt_logprobs=rng.choice((None, None, None, None, 0, 3)),
        logit_bias={5: 1.0} if rng.random() < 0.1 else {},
        **length,  # type: ignore[arg-type]
    )


def main(name: str, piece_tokens: int, seed: int, *words: str) -> None:
    logging.disable()  # zeros are no logits to audit
    asked = Asked()
    asked.install()
    a_configuration_for_each_key()
    if "hopper" in words:
        tiny.PAGE = hopper.PAGE
        tiny.CONFIGS[name] |= HOPPER
    rng = random.Random(seed)
    engine = tiny_engine(
        name,
        budget=BUDGET,
        max_seqs=rng.choice((5, 24, 70)),
        max_model_len=LONGEST,
        padding=rng.choice((1, 8)),
        overlap=rng.random() < 0.7,
        reuse=True,
        interval=rng.choice((16, 64, 256)),
        audit_rate=0.2,
        rig=Zeros(
            implementation="hopper" if "hopper" in words else "triton",
            dtype=torch.bfloat16,
            piece_tokens=piece_tokens,
        ),
        slabs=4000,
        poison=Poison.OFF,
    )
    if "unrehearsed" not in words:
        rehearse(engine.runner, PaddingRows(engine.runner, engine.ledger.reserved), engine.scheduler.limits)
    copies(engine.runner, engine.ledger.reserved)
    known = set(asked.seen)
    play(engine, rng)
    print("\n".join([f"{len(known)} rehearsed", *(kernel for kernel in asked.seen if kernel not in known)]))


if __name__ == "__main__":
    assert not triton.knobs.runtime.interpret
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
