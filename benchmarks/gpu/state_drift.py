"""What a recurrent state kept in bf16 costs over 8,000 tokens, against fp32: the numbers behind the default.

    python -m benchmarks.gpu.state_drift                         # the recurrences of M1 and M2, then the demo model
    python -m benchmarks.gpu.state_drift --device cpu --small    # smaller heads, for a laptop

Each recurrence reads the same values in all runs, activations in fp32, so the only difference is how its state is
stored between steps. The truth is the recurrence in fp64, token by token. *prefill*: all tokens in steps of at most
2,048, so a state is rounded where they end. *decode*: 250 tokens of prompt, then token by token, rounded at each.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.drift_demo import demo
from benchmarks.gpu.world import Part, World
from plait_kernels.gated_delta_rule import reference as gdn
from plait_kernels.segments import Segments
from plait_kernels.select import Kernels, select
from plait_kernels.ssd import reference as mamba
from plait_kernels.storage import Slots

POSITIONS = (250, 1000, 4000, 8000)
"""Tokens behind which errors are taken: of the state there, and of the next ``WINDOW`` outputs."""
WINDOW = 50
TOKENS = POSITIONS[-1] + WINDOW
PREFILL, PROMPT = 2048, 250
SEQUENCES = 4
DTYPES = (torch.float32, torch.bfloat16)

Inputs = dict[str, Tensor]
"""``[sequences, tokens, ...]``, or of some tokens flat: ``[tokens, ...]``."""


@dataclass(frozen=True)
class Gates:
    """As models are initialised, which trained ones stay near: rates of decay from 1 to 16, steps of 0.001 to 0.1."""

    a_log: Tensor
    dt_bias: Tensor

    @classmethod
    def of(cls, heads: int, device: torch.device) -> "Gates":
        steps = torch.exp(torch.rand(heads, device=device) * 4.6 - 6.9)
        return cls(torch.log(1 + 15 * torch.rand(heads, device=device)), steps + torch.log(-torch.expm1(-steps)))

    def log_decay(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(step sizes, logarithms of the decay), fp64."""
        step = F.softplus(logits.double() + self.dt_bias.double())
        return step, -self.a_log.double().exp() * step


class Recurrence:
    """One layer's heads; ``inner`` is the shape of its state."""

    name: str
    inner: tuple[int, int, int]
    gates: Gates

    def inputs(self, tokens: int) -> Inputs:
        raise NotImplementedError

    def run(self, kernels: Kernels, inputs: Inputs, view: Tensor, slots: Slots, segments: Segments) -> Tensor:
        """Outputs ``[tokens, heads, values]``."""
        raise NotImplementedError

    def step(self, inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
        """One token of each sequence in fp64: ``[sequences, ...]``."""
        raise NotImplementedError


@dataclass
class Delta(Recurrence):
    device: torch.device
    key_heads: int = 16
    heads: int = 32
    dim: int = 128
    name: str = "Gated DeltaNet"

    def __post_init__(self) -> None:
        self.inner, self.gates = (self.heads, self.dim, self.dim), Gates.of(self.heads, self.device)

    def inputs(self, tokens: int) -> Inputs:
        shapes = {"q": (self.key_heads, self.dim), "k": (self.key_heads, self.dim), "v": (self.heads, self.dim)}
        shapes |= {"a": (self.heads,), "b": (self.heads,)}  # type: ignore[dict-item]
        return {name: torch.randn(SEQUENCES, tokens, *shape, device=self.device) for name, shape in shapes.items()}

    def run(self, kernels: Kernels, inputs: Inputs, view: Tensor, slots: Slots, segments: Segments) -> Tensor:
        q, k, v, a, b = (inputs[n] for n in "qkvab")
        return kernels.gated_delta_rule(q, k, v, a, b, self.gates.a_log, self.gates.dt_bias, view, slots, segments)

    def step(self, inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (
            gdn.unit_length(inputs[n].double()).repeat_interleave(self.heads // self.key_heads, dim=1) for n in "qk"
        )
        _, decay = self.gates.log_decay(inputs["a"])
        return gdn.step(q * self.dim**-0.5, k, inputs["v"].double(), decay, inputs["b"].double().sigmoid(), state)


@dataclass
class Mamba(Recurrence):
    device: torch.device
    heads: int = 64
    dim: int = 64
    state_dim: int = 128
    name: str = "Mamba-2"

    def __post_init__(self) -> None:
        self.inner, self.gates = (self.heads, self.dim, self.state_dim), Gates.of(self.heads, self.device)

    @cached_property
    def skip(self) -> Tensor:
        return torch.ones(self.heads, device=self.device)

    def inputs(self, tokens: int) -> Inputs:
        shapes = {"x": (self.heads, self.dim), "b": (1, self.state_dim), "c": (1, self.state_dim)}
        shapes |= {"t": (self.heads,)}  # type: ignore[dict-item]
        return {name: torch.randn(SEQUENCES, tokens, *shape, device=self.device) for name, shape in shapes.items()}

    def run(self, kernels: Kernels, inputs: Inputs, view: Tensor, slots: Slots, segments: Segments) -> Tensor:
        x, dt, b, c = (inputs[n] for n in "xtbc")
        gates = (self.skip, self.gates.dt_bias, view, slots, segments)
        return kernels.ssd(x, dt, self.gates.a_log, b, c, *gates, dt_limit=(0.0, float("inf")))

    def step(self, inputs: Inputs, state: Tensor) -> tuple[Tensor, Tensor]:
        x, b, c = (inputs[n].double() for n in "xbc")
        size, decay = self.gates.log_decay(inputs["t"])
        b, c = (u.expand(-1, self.heads, -1) for u in (b, c))
        y, state = mamba.step(x * size.unsqueeze(-1), decay, b, c, state)
        return y + x, state


@dataclass
class Run:
    """Outputs ``[sequences, tokens, ...]``, and the states ``[sequences, ...]`` at ``POSITIONS``."""

    outputs: Tensor
    states: dict[int, Tensor]

    def errors(self, true: "Run", position: int) -> tuple[float, float]:
        """Relative, of the outputs that read the state and of the state."""
        window = slice(position, position + WINDOW)
        outputs = relative(self.outputs[:, window], true.outputs[:, window])
        return outputs, relative(self.states[position], true.states[position])


def relative(seen: Tensor, true: Tensor) -> float:
    return float((seen.double() - true).norm() / true.norm())


def truth(recurrence: Recurrence, inputs: Inputs) -> Run:
    state = torch.zeros(SEQUENCES, *recurrence.inner, dtype=torch.float64, device=inputs["b"].device)
    outputs, states = [], {}
    for at in range(TOKENS):
        out, state = recurrence.step({name: u[:, at] for name, u in inputs.items()}, state)
        outputs.append(out)
        if at + 1 in POSITIONS:
            states[at + 1] = state
    return Run(torch.stack(outputs, dim=1), states)


def steps(prompt: int) -> Iterator[tuple[int, int]]:
    """Tokens of each step: the prompt in pieces that also end at every position that is looked at, then one by one."""
    at = 0
    for border in sorted({*range(PREFILL, prompt, PREFILL), *(p for p in POSITIONS if p < prompt), prompt}):
        yield at, border
        at = border
    yield from ((i, i + 1) for i in range(prompt, TOKENS))


def stored(recurrence: Recurrence, inputs: Inputs, kernels: Kernels, dtype: torch.dtype, prompt: int) -> Run:
    """The same in the engine's kernels with states of ``dtype``."""
    world = World(inputs["b"].device)
    arena, (view,), slots = world.slots(SEQUENCES, (recurrence.inner, dtype))
    arena.zero_()
    single = world.segments(SEQUENCES, 1)
    outputs, states = [], {}
    for start, end in steps(prompt):
        flat = {name: u[:, start:end].flatten(0, 1) for name, u in inputs.items()}
        segments = single if end - start == 1 else world.segments(0, 0, [Part(start, end - start)] * SEQUENCES)
        out = recurrence.run(kernels, flat, view, slots, segments)
        outputs.append(out.view(SEQUENCES, end - start, *out.shape[1:]))
        if end in POSITIONS:
            states[end] = view[slots.rows.long()].clone()
    return Run(torch.cat(outputs, dim=1), states)


def table(recurrence: Recurrence, kernels: Kernels) -> None:
    inputs = recurrence.inputs(TOKENS)
    true = truth(recurrence, inputs)
    print(f"{recurrence.name}, states of {'x'.join(map(str, recurrence.inner))}, relative error of outputs / states")
    print(f"{'':24}" + "".join(f"{position:>22,}" for position in POSITIONS))
    for way, prompt in (("prefill", TOKENS), ("decode", PROMPT)):
        for dtype in DTYPES:
            seen = stored(recurrence, inputs, kernels, dtype, prompt)
            errors = (seen.errors(true, position) for position in POSITIONS)
            cells = (f"{outputs:.1e} / {states:.1e}" for outputs, states in errors)
            print(f"{way + ' ' + str(dtype).removeprefix('torch.'):24}" + "".join(f"{cell:>22}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="fewer and smaller heads")
    parser.add_argument("--look-ups", type=int, default=280, help="of the demo model; 0: leave it out")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    kernels = select(device, torch.float32)
    kernels.wait()
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {kernels.choices['ssd'].implementation} kernels")
    small = (Delta(device, 2, 4, 64), Mamba(device, 8, 32, 64))
    with torch.inference_mode():
        for recurrence in small if args.small else (Delta(device), Mamba(device)):
            table(recurrence, kernels)
    if args.look_ups:
        demo(args.device, args.look_ups)


if __name__ == "__main__":
    main()
