"""Gemma 3: sliding-window and full attention, each kind with its own rotary table, and norms around every block.

Norm weights are stored as their difference from 1; the embedding is scaled by the square root of its width.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from plait_engine.layer_plan import layer_kinds
from plait_engine.models.base import Build, LayerState
from plait_engine.models.causal import CausalModel, Layer, ModelConfig
from plait_engine.models.config import Keys, language_keys
from plait_engine.models.layers.attention import Attention, AttentionShape
from plait_engine.models.layers.mlp import GatedMLP
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.models.layers.rotary import RotarySpec, RotaryTable, spec_of
from plait_engine.runner.batch import StepBatch

KINDS = frozenset({"sliding_attention", "full_attention"})
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
"""Published files leave out what equals the defaults of transformers' ``Gemma3TextConfig``, which are these. Widths,
the number of layers and the window are in every file, so they have no default."""
DEFAULT_PATTERN = {"sliding_window_pattern": 6}


@dataclass(frozen=True)
class Config(ModelConfig):
    attention: dict[str, AttentionShape]
    """By kind of layer, like ``rotary``."""
    attention_bias: bool
    rotary: dict[str, RotarySpec]
    inner: int
    logits_cap: float | None

    @classmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        keys = language_keys(config, "gemma3_text", DEFAULTS)
        keys.one_of("hidden_activation", ["gelu_pytorch_tanh"])
        keys.one_of("use_bidirectional_attention", [False], default=False)
        keys.multiple("num_attention_heads", of="num_key_value_heads")
        head_dim = keys.integer("head_dim")
        full = AttentionShape(
            keys.integer("num_attention_heads"),
            keys.integer("num_key_value_heads"),
            head_dim,
            keys.number("query_pre_attn_scalar") ** -0.5,
            softcap=keys.optional_number("attn_logit_softcapping"),
        )
        kinds = layer_kinds(config, KINDS, DEFAULT_PATTERN)
        sliding = replace(full, window=keys.integer("sliding_window")) if "sliding_attention" in kinds else full
        return cls(
            kinds=kinds,
            vocab_size=keys.integer("vocab_size"),
            hidden=keys.integer("hidden_size"),
            max_positions=keys.integer("max_position_embeddings"),
            tied=keys.flag("tie_word_embeddings"),
            eps=keys.number("rms_norm_eps"),
            attention={"full_attention": full, "sliding_attention": sliding},
            attention_bias=keys.flag("attention_bias"),
            rotary=_rotary(keys, head_dim),
            inner=keys.integer("intermediate_size"),
            logits_cap=keys.optional_number("final_logit_softcapping"),
        )


def _rotary(keys: Keys, head_dim: int) -> dict[str, RotarySpec]:
    """One for each kind, under ``rope_parameters``; formerly only full attention was scaled, by ``rope_scaling``."""
    given = keys.group("rope_parameters")
    if given is None:
        scaling = keys.group("rope_scaling")
        full = {"rope_theta": keys.number("rope_theta"), **(scaling.values if scaling else {})}
        sliding = {"rope_theta": keys.number("rope_local_base_freq")}
        given = Keys({"full_attention": full, "sliding_attention": sliding}, keys.model_type)
    specs = {}
    for kind in sorted(KINDS):
        rope = given.group(kind)
        if rope is None:
            raise keys.error(f"rope_parameters has no {kind}")
        specs[kind] = spec_of(rope, head_dim)
    return specs


class NormedAttention(Attention):
    """Queries and keys are normed head by head."""

    def __init__(self, config: Config, kind: str, build: Build) -> None:
        shape = config.attention[kind]
        super().__init__(config.hidden, shape, build, bias=config.attention_bias)
        self.q_norm = RMSNorm(shape.head_dim, config.eps, build, offset=1.0)
        self.k_norm = RMSNorm(shape.head_dim, config.eps, build, offset=1.0)

    def norms(self) -> tuple[RMSNorm, RMSNorm]:
        return self.q_norm, self.k_norm


class GemmaLayer(Layer):
    """``residual + norm(block(norm(residual)))``, twice. The last norm is left to the layer behind, which adds."""

    def __init__(self, config: Config, kind: str, build: Build) -> None:
        super().__init__()
        self.kind, self.mlp_kind = kind, "dense"
        self.input_layernorm, self.post_attention_layernorm, self.pre_feedforward_layernorm = (
            RMSNorm(config.hidden, config.eps, build, offset=1.0) for _ in range(3)
        )
        self.self_attn = NormedAttention(config, kind, build)
        self.specs = self.self_attn.specs
        self.mlp = GatedMLP(config.hidden, config.inner, build, activation="gelu_tanh")
        self.post_feedforward_layernorm = RMSNorm(config.hidden, config.eps, build, offset=1.0)

    def bind(self, states: tuple[LayerState, ...]) -> None:
        (self.self_attn.state,) = states

    def forward(
        self,
        delta: Tensor | None,
        residual: Tensor,
        batch: StepBatch,
        rotary: RotaryTable | None,
        last: RMSNorm | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``last``: the last norm of the layer before, which its delta has yet to pass."""
        x, residual = self.input_layernorm.add(delta, residual, first=last)
        x = self.self_attn(x, batch, rotary)
        x, residual = self.pre_feedforward_layernorm.add(x, residual, first=self.post_attention_layernorm)
        return self.mlp(x), residual


class Gemma3Text(CausalModel):
    ignored: ClassVar[tuple[str, ...]] = (
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    )
    """The encoder of images."""

    config_class: ClassVar[type[ModelConfig]] = Config

    def __init__(self, config: Config, build: Build, page_size: int, max_positions: int) -> None:
        super().__init__(config, build, page_size, max_positions)
        # Rounded to the weights' dtype, as it was when the model was trained.
        self.embedding_scale = torch.tensor(config.hidden**0.5, dtype=build.dtype, device="cpu").item()
        self.logits_cap = config.logits_cap
        self.rotary = nn.ModuleDict(
            {kind: RotaryTable(config.rotary[kind], max_positions) for kind in sorted(set(config.kinds))}
        )
        self.plan = self.planned([GemmaLayer(config, kind, build) for kind in config.kinds])
        self.norm = RMSNorm(config.hidden, config.eps, build, offset=1.0)

    def forward(self, batch: StepBatch) -> Tensor:
        residual = self.embed_tokens(batch.token_ids) * self.embedding_scale  # [tokens, hidden]
        delta: Tensor | None = None
        last: RMSNorm | None = None
        for layer in self.layers:
            assert isinstance(layer, GemmaLayer)
            delta, residual = layer(delta, residual, batch, self.rotary[layer.kind], last)
            last = layer.post_feedforward_layernorm
        hidden, _ = self.norm.add(delta, residual, first=last)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return logits if self.logits_cap is None else torch.tanh(logits / self.logits_cap) * self.logits_cap
