"""What a model keeps for each token and in each checkpoint, and how long computing tokens takes."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from plait_engine.activations import PLANNING_KERNELS
from plait_engine.layer_plan import text_config
from plait_engine.models.registry import build_model
from plait_engine.state.spec import GRANULE_BYTES, GroupId, PagedSpec, SlotSpec, StateGroup, TensorSpec, align

PAGES, ROWS = GroupId(0), GroupId(1)
MIB = 1 << 20


@dataclass(frozen=True)
class Geometry:
    """One group of pages and one of slot rows, of the bytes that the model's groups of each kind have together."""

    name: str
    token_bytes: int
    checkpoint_bytes: int
    block_tokens: int
    """Block size of a block-aligned cache for this model: the attention block that is as large as its state."""
    token_flops: float
    pair_flops: float
    """For each pair of tokens that attend to one another."""

    @property
    def rows(self) -> int:
        """Slot rows of about a MiB each."""
        return max(1, round(self.checkpoint_bytes / MIB))

    def groups(self, page_size: int) -> tuple[StateGroup, StateGroup]:
        row = align(-(-self.checkpoint_bytes // self.rows), GRANULE_BYTES)
        pages = PagedSpec("keys and values", (TensorSpec("kv", (self.token_bytes,), torch.uint8),))
        rows = SlotSpec("states", (TensorSpec("state", (row,), torch.uint8),))
        return StateGroup(PAGES, pages, (0,), page_size), StateGroup(ROWS, rows, tuple(range(self.rows)), 1)

    def padded_to_blocks(self) -> "Geometry":
        """States as a one-size-of-block cache keeps them: in whole blocks."""
        block = self.token_bytes * self.block_tokens
        return replace(self, checkpoint_bytes=-(-self.checkpoint_bytes // block) * block)

    def flops(self, start: int, end: int) -> float:
        """To compute the tokens ``[start, end)`` of a prompt."""
        return (end - start) * self.token_flops + (end * end - start * start) / 2 * self.pair_flops

    def seconds(self, start: int, end: int) -> float:
        return self.flops(start, end) / SUSTAINED_FLOPS


SUSTAINED_FLOPS = 4e14
"""What one large GPU does in prefill."""

NAMED = {
    "A": Geometry("A", 64 << 10, round(146.8 * MIB), 1024, 54e9, 4e5),
    "B": Geometry("B", 16 << 10, 76 * MIB, 512, 16e9, 6.5e4),
}
"""A: a Gated DeltaNet hybrid of 27 billion parameters. B: a Mamba-2 hybrid of 8 billion."""


def of_model(path: Path) -> Geometry:
    """From a config.json. Window pages count as part of a checkpoint; floating point operations are a rough count."""
    config = json.loads((path / "config.json" if path.is_dir() else path).read_text())
    model = build_model(config, dtype=torch.bfloat16, page_size=16, kernels=PLANNING_KERNELS)
    token, checkpoint, attending = 0, 0, 0
    for group in model.plan.groups:
        spec, per_entry = group.spec, group.unit_bytes // group.page_size
        if isinstance(spec, SlotSpec):
            checkpoint += group.unit_bytes * group.units_per_slot
        elif spec.window is not None:
            checkpoint += per_entry * spec.window
        else:
            token += per_entry // spec.ratio
            attending += len(group.layers)
    hidden = int(text_config(config)["hidden_size"])
    block = max(16, -(-checkpoint // max(1, token) // 16) * 16)
    return Geometry(path.name, token, checkpoint, block, float(model.weights_bytes), 4.0 * hidden * attending)
