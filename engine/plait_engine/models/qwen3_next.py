"""Qwen3-Next: Gated DeltaNet and gated attention layers, feed-forward a mixture of experts or dense.

Norm weights are stored as their difference from 1, and a quarter of each head's channels is rotated by default.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from plait_engine.layer_plan import layer_kinds
from plait_engine.models.base import Build, LayerState
from plait_engine.models.causal import CausalModel, Layer, ModelConfig
from plait_engine.models.config import Keys, language_keys
from plait_engine.models.layers.attention import AttentionShape
from plait_engine.models.layers.experts import experts_per_token
from plait_engine.models.layers.gated_attention import GatedAttention
from plait_engine.models.layers.gated_delta_net import DeltaShape, GatedDeltaNet
from plait_engine.models.layers.linear import Rows
from plait_engine.models.layers.mlp import GatedMLP
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.models.layers.rotary import RotarySpec, RotaryTable, rotary_spec
from plait_engine.models.layers.sparse_moe import MoeShape, SparseMoe
from plait_engine.runner.batch import StepBatch

KINDS = frozenset({"linear_attention", "full_attention"})
PARTIAL_ROTARY = 0.25


@dataclass(frozen=True)
class Config(ModelConfig):
    attention: AttentionShape
    attention_bias: bool
    delta: DeltaShape
    projections: dict[str, Rows]
    """How the checkpoint stores the input matrix of Gated DeltaNet."""
    rotary: RotarySpec
    moe: tuple[MoeShape | None, ...]
    """For each layer; None where it is dense."""
    inner: int
    """Of dense layers."""

    @classmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        keys = language_keys(config, "qwen3_next")
        moe = moe_shape(keys, renormalise=keys.flag("norm_topk_prob", True))
        step, dense = keys.integer("decoder_sparse_step", 1), keys.indices("mlp_only_layers")
        layers = range(keys.integer("num_hidden_layers"))
        sparse = tuple(moe if i not in dense and (i + 1) % step == 0 else None for i in layers)
        return cls.common(keys, config, sparse, interleaved=True)

    @classmethod
    def common(cls, keys: Keys, config: dict[str, Any], moe: tuple[MoeShape | None, ...], *, interleaved: bool) -> Self:
        """What Qwen3-Next and Qwen3.5 say alike."""
        keys.one_of("hidden_act", ["silu"])
        keys.one_of("attn_output_gate", [True], default=True)
        keys.multiple("num_attention_heads", of="num_key_value_heads")
        keys.multiple("linear_num_value_heads", of="linear_num_key_heads")
        head_dim, delta = keys.integer("head_dim"), _delta(keys)
        return cls(
            kinds=layer_kinds(config, KINDS),
            vocab_size=keys.integer("vocab_size"),
            hidden=keys.integer("hidden_size"),
            max_positions=keys.integer("max_position_embeddings"),
            tied=keys.flag("tie_word_embeddings"),
            eps=keys.number("rms_norm_eps"),
            attention=AttentionShape(
                keys.integer("num_attention_heads"), keys.integer("num_key_value_heads"), head_dim, head_dim**-0.5
            ),
            attention_bias=keys.flag("attention_bias", False),
            delta=delta,
            projections=delta.interleaved() if interleaved else delta.separate(),
            rotary=rotary_spec(keys, head_dim, partial=PARTIAL_ROTARY),
            moe=moe,
            inner=keys.integer("intermediate_size") if None in moe else 0,
        )


def _delta(keys: Keys) -> DeltaShape:
    return DeltaShape(
        key_heads=keys.integer("linear_num_key_heads"),
        value_heads=keys.integer("linear_num_value_heads"),
        key_dim=keys.integer("linear_key_head_dim"),
        value_dim=keys.integer("linear_value_head_dim"),
        conv_width=keys.integer("linear_conv_kernel_dim"),
        norm_eps=keys.number("rms_norm_eps"),
    )


def moe_shape(keys: Keys, *, renormalise: bool) -> MoeShape | None:
    """None where the model has no experts."""
    experts = keys.integer("num_experts", at_least=0)
    if experts == 0:
        return None
    return MoeShape(
        experts=experts,
        per_token=experts_per_token(keys, experts),
        inner=keys.integer("moe_intermediate_size"),
        shared_inner=keys.integer("shared_expert_intermediate_size"),
        renormalise=renormalise,
    )


class QwenLayer(Layer):
    def __init__(self, config: Config, kind: str, moe: MoeShape | None, build: Build) -> None:
        super().__init__()
        self.kind, self.mlp_kind = kind, "dense" if moe is None else "moe"
        self.input_layernorm = RMSNorm(config.hidden, config.eps, build, offset=1.0)
        self.linear_attn: GatedDeltaNet | None = None
        self.self_attn: GatedAttention | None = None
        if kind == "linear_attention":
            self.linear_attn = GatedDeltaNet(config.hidden, config.delta, config.projections, build)
            self.specs = self.linear_attn.specs
        else:
            self.self_attn = GatedAttention(
                config.hidden, config.attention, config.eps, build, bias=config.attention_bias
            )
            self.specs = self.self_attn.specs
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps, build, offset=1.0)
        self.mlp = GatedMLP(config.hidden, config.inner, build) if moe is None else SparseMoe(config.hidden, moe, build)

    def bind(self, states: tuple[LayerState, ...]) -> None:
        mixer = self.linear_attn or self.self_attn
        assert mixer is not None
        (mixer.state,) = states

    def forward(
        self, delta: Tensor | None, residual: Tensor, batch: StepBatch, rotary: RotaryTable | None
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm.add(delta, residual)
        if self.linear_attn is not None:
            x = self.linear_attn(x, batch)
        else:
            assert self.self_attn is not None
            x = self.self_attn(x, batch, rotary)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class Qwen3Next(CausalModel):
    ignored: ClassVar[tuple[str, ...]] = ("mtp.",)
    """Layers for predicting several tokens at once."""

    config_class: ClassVar[type[ModelConfig]] = Config

    def __init__(self, config: Config, build: Build, page_size: int, max_positions: int) -> None:
        super().__init__(config, build, page_size, max_positions)
        self.rotary = RotaryTable(config.rotary, max_positions)
        kinds = zip(config.kinds, config.moe, strict=True)
        self.plan = self.planned([QwenLayer(config, kind, moe, build) for kind, moe in kinds])
        self.norm = RMSNorm(config.hidden, config.eps, build, offset=1.0)

    def forward(self, batch: StepBatch) -> Tensor:
        residual = self.embed_tokens(batch.token_ids)  # [tokens, hidden]
        delta: Tensor | None = None
        for layer in self.layers:
            delta, residual = layer(delta, residual, batch, self.rotary)
        hidden, _ = self.norm.add(delta, residual)
        return hidden
