"""Which implementation of each op runs here, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch

from plait_kernels.causal_conv import CausalConv
from plait_kernels.causal_conv.reference import causal_conv
from plait_kernels.checksum_units import ChecksumUnits
from plait_kernels.checksum_units.reference import checksum_units
from plait_kernels.copy_units import CopyUnits
from plait_kernels.copy_units.reference import copy_units
from plait_kernels.cpu.build import Build, BuildError, Target, target
from plait_kernels.cpu.kernels import compiled_ops
from plait_kernels.cpu.library import DTYPES, Library
from plait_kernels.cpu.tape import record
from plait_kernels.cuda.graph import capture
from plait_kernels.gated_activation import GatedActivation
from plait_kernels.gated_activation.reference import gated_activation
from plait_kernels.gated_delta_rule import GatedDeltaRule
from plait_kernels.gated_delta_rule.reference import gated_delta_rule
from plait_kernels.linear import Linear
from plait_kernels.linear.reference import linear
from plait_kernels.moe import Moe
from plait_kernels.moe.reference import moe
from plait_kernels.norm import AddRmsNorm, GatedRmsNorm, RmsNorm
from plait_kernels.norm.reference import add_rms_norm, gated_rms_norm, rms_norm
from plait_kernels.paged_attention import PagedAttention
from plait_kernels.paged_attention.reference import paged_attention
from plait_kernels.qk_rotary import QkRotary
from plait_kernels.recording import NotReplayableError, Recording
from plait_kernels.rotary import Rotary
from plait_kernels.rotary.reference import rotary
from plait_kernels.sampling import ComputeLogprobs, Penalise, Sample
from plait_kernels.sampling.reference import logprobs, penalise, sample
from plait_kernels.ssd import Ssd
from plait_kernels.ssd.reference import ssd
from plait_kernels.tuning import device_slug, table_of

T = TypeVar("T")
HOPPER = (9, 0)
"""Compute capability of the one GPU that ``wgmma`` instructions are for."""


@dataclass(frozen=True)
class Choice:
    """Which implementation an op has, and why that one."""

    implementation: str
    reason: str


@dataclass
class Kernels:
    """One callable per op; see each op's folder for what it promises. Built by ``select``.

    Models keep this object and look an op up at every call (``kernels.ssd(...)``), so that ``upgrade`` takes effect.
    """

    linear: Linear = linear
    rms_norm: RmsNorm = rms_norm
    add_rms_norm: AddRmsNorm = add_rms_norm
    gated_rms_norm: GatedRmsNorm = gated_rms_norm
    gated_activation: GatedActivation = gated_activation
    rotary: Rotary = rotary
    paged_attention: PagedAttention = paged_attention
    causal_conv: CausalConv = causal_conv
    ssd: Ssd = ssd
    gated_delta_rule: GatedDeltaRule = gated_delta_rule
    moe: Moe = moe
    sample: Sample = sample
    penalise: Penalise = penalise
    logprobs: ComputeLogprobs = logprobs
    copy_units: CopyUnits = copy_units
    checksum_units: ChecksumUnits = checksum_units
    qk_rotary: QkRotary | None = None
    """Norms and rotary of queries and keys in one launch, where launches are dear; None: op by op."""
    choices: dict[str, Choice] = field(default_factory=dict)
    graphs: bool = False
    """Whether steps can be captured as CUDA graphs."""
    generation: int = 0
    """How often ``upgrade`` has changed the ops: what was recorded before calls the old ones."""
    _build: Build | None = None
    _library: Library | None = None
    _threads: int | None = None

    def upgrade(self) -> bool:
        """Take over faster kernels that became ready since the last call; True if anything changed.

        Call it between steps, never inside one: two implementations of an op agree to rounding, not to the bit. Also
        follows ``torch.set_num_threads``, unless ``use_threads`` was called. Costs a microsecond.
        """
        if self._library is not None:
            self._library.set_threads(self._threads or torch.get_num_threads())
        if self._build is None:
            return False
        try:
            if not self._build.done():
                return False
            self._take(self._build.target)
        except BuildError as error:
            self._stay(str(error))
        self._build = None
        self.generation += 1
        return True

    @property
    def compiled(self) -> bool:
        """Whether the heavy ops are compiled ones, with threads of their own."""
        return self._library is not None

    def use_threads(self, threads: int) -> None:
        """Compiled ops use this many threads, whatever torch does.

        PyTorch's own threads wait for one another at every op; where cores are shared with other processes a single
        such wait takes milliseconds. A server can leave torch one thread, since what is heavy is compiled.
        """
        self._threads = threads
        if self._library is not None:
            self._library.set_threads(threads)

    def record(self, step: Callable[[], T], *, known: bool = False) -> Recording[T]:
        """Keep the calls of ``step``, to be made again without Python in between: see ``plait_kernels.cpu.tape``.

        For steps whose inputs always lie in the same tensors; on a GPU a captured graph (``plait_kernels.cuda.graph``),
        which costs less if a step like this is ``known`` to have run before. Raises ``NotReplayableError`` where there
        are no compiled kernels, or where the step's course depends on values.
        """
        if self.graphs:
            return capture(step, known=known)
        if self._library is None:
            raise NotReplayableError("no compiled kernels")
        return record(self._library, step)

    def close(self) -> None:
        """End what still runs in the background."""
        if self._build is not None:
            self._build.stop()
            self._build = None

    def wait(self) -> None:
        """Until nothing faster is to be expected, then ``upgrade``: for benchmarks and tests, not for servers."""
        if self._build is not None:
            self._build.wait()
            self.upgrade()

    def _take(self, target: Target) -> None:
        try:
            self._library = Library(target.library)
        except OSError as error:
            raise BuildError(f"cannot load {target.library.name}: {error}") from error
        self._library.set_threads(self._threads or torch.get_num_threads())
        for name, op in compiled_ops(self._library).items():
            setattr(self, name, op)
            self.choices[name] = Choice("cpu", f"compiled for this processor by {Path(target.compiler).name}")

    def _stay(self, reason: str) -> None:
        for name in OPS:
            self.choices[name] = Choice("reference", reason)


OPS = tuple(
    item.name
    for item in fields(Kernels)
    if item.name not in ("choices", "graphs", "generation", "qk_rotary") and not item.name.startswith("_")
)


def select(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Kernels for activations of ``dtype`` on ``device``, ready at once.

    On the CPU the compiled ones come at once from the user's cache, or with a later ``upgrade`` when they must be
    built first; until then, and where they cannot be built, the references work.
    """
    if device.type == "cuda":
        return _for_cuda(device)
    kernels = Kernels()
    if device.type != "cpu" or dtype not in DTYPES:
        kernels._stay(f"plain PyTorch, runs everywhere; nothing faster for {dtype} on {device.type}")
        return kernels
    kernels._stay("plain PyTorch, runs everywhere; nothing faster for this op")
    try:
        wanted = target()
        if wanted.library.exists():
            kernels._take(wanted)
        else:
            kernels._build = Build(wanted)
            kernels._stay(f"plain PyTorch until {Path(wanted.compiler).name} has built the compiled ops")
    except BuildError as error:
        kernels._stay(f"plain PyTorch: {error}")
    return kernels


def _for_cuda(device: torch.device) -> Kernels:
    """Triton where it is installed. Mixer steps that join convolution, recurrence and norm in one kernel exist, but
    inside a captured graph the separate kernels were faster at every batch size (docs/performance.md), so they are not
    chosen."""
    kernels = Kernels()
    if find_spec("triton") is None:
        kernels._stay(f"plain PyTorch, runs everywhere; triton is not installed for {device.type}")
        return kernels
    from plait_kernels.qk_rotary.triton import qk_rotary
    from plait_kernels.triton_ops import IMPLEMENTATIONS

    slug = device_slug(device)
    reason = f"configurations measured on {slug}" if table_of(slug) else f"safe defaults: {slug} was not measured"
    for name, op in {**IMPLEMENTATIONS, "qk_rotary": qk_rotary}.items():
        setattr(kernels, name, op)
        kernels.choices[name] = Choice("triton", reason)
    if torch.cuda.get_device_capability(device) == HOPPER:
        from plait_kernels.paged_attention.hopper import paged_attention as with_hopper_prefill

        kernels.paged_attention = with_hopper_prefill
        own = Choice("gluon, triton", "prompts on Hopper's own instructions")
        kernels.choices["paged_attention"] = own
        if "gdn_hopper_scan" in table_of(slug):  # which elsewhere is off until it was measured
            kernels.choices["gated_delta_rule"] = own
    kernels.graphs = True
    return kernels
