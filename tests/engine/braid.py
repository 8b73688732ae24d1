"""One model with every kind of state: Mamba-2, Gated DeltaNet, sliding window, short convolution, full attention."""

from typing import Any

import torch
from torch import Tensor, nn

from plait_engine.models import gemma3_text, granitemoehybrid, lfm2, qwen3_5_text, qwen3_next
from plait_engine.models.base import Build
from plait_engine.models.causal import CausalModel, Layer
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.models.layers.rotary import RotaryTable
from plait_engine.runner.batch import StepBatch


class Braid(CausalModel):
    """Layers of four architectures on one residual stream. ``configs``: a config.json of each, of one hidden size."""

    def __init__(self, configs: dict[str, dict[str, Any]], build: Build, page_size: int, max_positions: int) -> None:
        granite = granitemoehybrid.Config.parse(configs["granite"])
        super().__init__(granite, build, page_size, max_positions)
        gemma = gemma3_text.Config.parse(configs["gemma3"])
        layers: list[Layer] = [
            granitemoehybrid.GraniteLayer(granite, "linear_attention", build),
            qwen3_next.QwenLayer(qwen3_5_text.Config.parse(configs["qwen3_5"]), "linear_attention", None, build),
            gemma3_text.GemmaLayer(gemma, "sliding_attention", build),
            lfm2.Lfm2Layer(lfm2.Config.parse(configs["lfm2"]), "conv", build),
            granitemoehybrid.GraniteLayer(granite, "full_attention", build),
            gemma3_text.GemmaLayer(gemma, "sliding_attention", build),
            granitemoehybrid.GraniteLayer(granite, "linear_attention", build),
        ]
        self.rotary = RotaryTable(gemma.rotary["sliding_attention"], max_positions)
        self.plan = self.planned(layers)
        self.norm = RMSNorm(granite.hidden, granite.eps, build)

    def forward(self, batch: StepBatch) -> Tensor:
        residual = self.embed_tokens(batch.token_ids)
        delta: Tensor | None = None
        for layer in self.layers:
            assert isinstance(layer, nn.Module)
            rotary = self.rotary if isinstance(layer, gemma3_text.GemmaLayer) else None
            delta, residual = layer(delta, residual, batch, rotary)
        hidden, _ = self.norm.add(delta, residual)
        return hidden


def build_braid(configs: dict[str, dict[str, Any]], build: Build, page_size: int) -> Braid:
    """Norms have a larger epsilon than models have: with random weights, the norm of next to nothing now and then blows
    up the rounding of two ways to compute it, beyond what is compared here."""
    calm = {name: config | {"rms_norm_eps": 1e-3, "norm_eps": 1e-3} for name, config in configs.items()}
    with torch.device("meta"):
        return Braid(calm, build, page_size, 256).eval()
