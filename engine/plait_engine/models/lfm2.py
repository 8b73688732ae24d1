"""LFM2: gated short convolutions and attention layers (Liquid AI 2025)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from plait_engine.layer_plan import layer_kinds
from plait_engine.models.base import Build, LayerState
from plait_engine.models.causal import CausalModel, Layer, ModelConfig
from plait_engine.models.config import Keys, language_keys
from plait_engine.models.layers.attention import Attention, AttentionShape
from plait_engine.models.layers.conv import ConvWeights
from plait_engine.models.layers.linear import Linear, stacked
from plait_engine.models.layers.mlp import GatedMLP
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.models.layers.rotary import RotarySpec, RotaryTable, rotary_spec
from plait_engine.runner.batch import StepBatch
from plait_engine.state.spec import SlotSpec

KINDS = frozenset({"conv", "full_attention"})


@dataclass(frozen=True)
class Config(ModelConfig):
    attention: AttentionShape
    conv_width: int
    conv_bias: bool
    rotary: RotarySpec
    inner: int

    @classmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        keys = language_keys(config, "lfm2")
        hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
        keys.multiple("num_attention_heads", of="num_key_value_heads")
        head_dim = keys.integer("head_dim", hidden // heads)
        return cls(
            kinds=layer_kinds(config, KINDS),
            vocab_size=keys.integer("vocab_size"),
            hidden=hidden,
            max_positions=keys.integer("max_position_embeddings"),
            tied=keys.flag("tie_word_embeddings", keys.values.get("tie_embedding", True)),
            eps=keys.number("norm_eps"),
            attention=AttentionShape(heads, keys.integer("num_key_value_heads"), head_dim, head_dim**-0.5),
            conv_width=keys.integer("conv_L_cache"),
            conv_bias=keys.flag("conv_bias"),
            rotary=rotary_spec(keys, head_dim),
            inner=_inner(keys),
        )


def _inner(keys: Keys) -> int:
    """Width of the feed-forward: as given, or two thirds of it times a factor, rounded up to a multiple."""
    inner = keys.integer("block_ff_dim" if "block_ff_dim" in keys.values else "intermediate_size")
    if not keys.flag("block_auto_adjust_ff_dim"):
        return inner
    scaled = int(keys.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
    multiple = keys.integer("block_multiple_of")
    return -(-scaled // multiple) * multiple


class NormedAttention(Attention):
    """Queries and keys are normed head by head."""

    def __init__(self, config: Config, build: Build) -> None:
        super().__init__(config.hidden, config.attention, build, output="out_proj")
        self.q_layernorm = RMSNorm(config.attention.head_dim, config.eps, build)
        self.k_layernorm = RMSNorm(config.attention.head_dim, config.eps, build)

    def norms(self) -> tuple[RMSNorm, RMSNorm]:
        return self.q_layernorm, self.k_layernorm


class ShortConv(nn.Module):
    """``out(c * conv(b * x))``: a convolution between two gates, all three from one matrix."""

    state: LayerState

    def __init__(self, config: Config, build: Build) -> None:
        super().__init__()
        self.kernels = build.kernels
        self.in_proj = Linear(config.hidden, stacked({"in_proj": 3 * config.hidden}), build, bias=config.conv_bias)
        self.conv = ConvWeights(config.hidden, config.conv_width, build, bias=config.conv_bias, name="conv")
        self.out_proj = Linear(config.hidden, stacked({"out_proj": config.hidden}), build, bias=config.conv_bias)
        self.specs = (SlotSpec("conv", (self.conv.spec,)),)

    def forward(self, x: Tensor, batch: StepBatch) -> Tensor:
        b, c, values = self.in_proj(x).chunk(3, dim=-1)  # [tokens, hidden] each
        mixed = self.kernels.causal_conv(
            b * values,
            self.conv.weight,
            self.conv.bias,
            self.state.views["conv"],
            self.state.slots(batch),
            batch.segments,
            activation=None,
        )
        out: Tensor = self.out_proj(c * mixed)
        return out  # [tokens, hidden]


class Lfm2Layer(Layer):
    def __init__(self, config: Config, kind: str, build: Build) -> None:
        super().__init__()
        self.kind, self.mlp_kind = kind, "dense"
        self.operator_norm = RMSNorm(config.hidden, config.eps, build)
        self.conv: ShortConv | None = None
        self.self_attn: NormedAttention | None = None
        if kind == "conv":
            self.conv = ShortConv(config, build)
            self.specs = self.conv.specs
        else:
            self.self_attn = NormedAttention(config, build)
            self.specs = self.self_attn.specs
        self.ffn_norm = RMSNorm(config.hidden, config.eps, build)
        self.feed_forward = GatedMLP(config.hidden, config.inner, build, names=("w1", "w3", "w2"))

    def bind(self, states: tuple[LayerState, ...]) -> None:
        mixer = self.conv or self.self_attn
        assert mixer is not None
        (mixer.state,) = states

    def forward(
        self, delta: Tensor | None, residual: Tensor, batch: StepBatch, rotary: RotaryTable | None
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.operator_norm.add(delta, residual)
        if self.conv is not None:
            x = self.conv(x, batch)
        else:
            assert self.self_attn is not None
            x = self.self_attn(x, batch, rotary)
        x, residual = self.ffn_norm.add(x, residual)
        return self.feed_forward(x), residual


class Lfm2(CausalModel):
    config_class: ClassVar[type[ModelConfig]] = Config

    def __init__(self, config: Config, build: Build, page_size: int, max_positions: int) -> None:
        super().__init__(config, build, page_size, max_positions)
        self.rotary = RotaryTable(config.rotary, max_positions)
        self.plan = self.planned([Lfm2Layer(config, kind, build) for kind in config.kinds])
        self.embedding_norm = RMSNorm(config.hidden, config.eps, build)

    def forward(self, batch: StepBatch) -> Tensor:
        residual = self.embed_tokens(batch.token_ids)  # [tokens, hidden]
        delta: Tensor | None = None
        for layer in self.layers:
            delta, residual = layer(delta, residual, batch, self.rotary)
        hidden, _ = self.embedding_norm.add(delta, residual)
        return hidden
