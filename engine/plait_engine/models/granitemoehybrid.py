"""Granite 4 hybrid: Mamba-2 and attention layers, feed-forward dense or a mixture of experts beside a shared one.

Four multipliers steer the scale of the signal (from Granite 3): of the embedding, of attention scores, of what each
block adds to the residual stream, and a divisor of the logits. Most checkpoints have no position embedding at all.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from plait_engine.layer_plan import layer_kinds
from plait_engine.models.base import Build, LayerState
from plait_engine.models.causal import CausalModel, Layer, ModelConfig
from plait_engine.models.config import Keys, language_keys
from plait_engine.models.layers.attention import Attention, AttentionShape
from plait_engine.models.layers.experts import Experts, Router, experts_per_token
from plait_engine.models.layers.linear import stacked
from plait_engine.models.layers.mamba2 import Mamba2, Mamba2Shape
from plait_engine.models.layers.mlp import GatedMLP
from plait_engine.models.layers.norm import RMSNorm
from plait_engine.models.layers.rotary import RotarySpec, RotaryTable, rotary_spec
from plait_engine.runner.batch import StepBatch

KINDS = frozenset({"linear_attention", "full_attention"})


@dataclass(frozen=True)
class Config(ModelConfig):
    attention: AttentionShape
    attention_bias: bool
    mamba: Mamba2Shape
    rotary: RotarySpec | None
    experts: int
    """0 in dense models."""
    experts_per_token: int
    expert_inner: int
    shared_inner: int
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float

    @classmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        keys = language_keys(config, "granitemoehybrid")
        keys.one_of("hidden_act", ["silu"])
        keys.one_of("position_embedding_type", ["rope", "nope"], default="nope")
        hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
        kv_heads = keys.integer("num_key_value_heads", heads)
        head_dim = keys.integer("head_dim", hidden // heads)
        if heads % kv_heads:
            raise keys.error(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
        experts = keys.integer("num_local_experts", at_least=0)
        rope = keys.values.get("position_embedding_type") == "rope"
        return cls(
            kinds=layer_kinds(config, KINDS),
            vocab_size=keys.integer("vocab_size"),
            hidden=hidden,
            max_positions=keys.integer("max_position_embeddings"),
            tied=keys.flag("tie_word_embeddings"),
            eps=keys.number("rms_norm_eps"),
            attention=AttentionShape(heads, kv_heads, head_dim, keys.number("attention_multiplier")),
            attention_bias=keys.flag("attention_bias", False),
            mamba=_mamba(keys, hidden),
            rotary=rotary_spec(keys, head_dim) if rope else None,
            experts=experts,
            experts_per_token=experts_per_token(keys, experts) if experts else 0,
            expert_inner=keys.integer("intermediate_size") if experts else 0,
            shared_inner=keys.integer("shared_intermediate_size"),
            embedding_multiplier=keys.number("embedding_multiplier"),
            residual_multiplier=keys.number("residual_multiplier"),
            logits_divisor=keys.number("logits_scaling"),
        )


def _mamba(keys: Keys, hidden: int) -> Mamba2Shape:
    keys.multiple("mamba_n_heads", of="mamba_n_groups")
    heads = keys.integer("mamba_n_heads")
    inner = keys.integer("mamba_expand") * hidden
    automatic = keys.values.get("mamba_d_head") == "auto"
    head_dim = inner // heads if automatic else keys.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise keys.error(f"mamba_n_heads {heads} x mamba_d_head {head_dim} is not mamba_expand x hidden_size {inner}")
    return Mamba2Shape(
        heads=heads,
        head_dim=head_dim,
        groups=keys.integer("mamba_n_groups"),
        state_size=keys.integer("mamba_d_state"),
        conv_width=keys.integer("mamba_d_conv"),
        conv_bias=keys.flag("mamba_conv_bias"),
        proj_bias=keys.flag("mamba_proj_bias"),
        dt_limit=keys.range("time_step_limit", (0.0, float("inf"))),
        norm_eps=keys.number("rms_norm_eps"),
    )


class SharedMLP(GatedMLP):
    """The checkpoint stores gate and up as one matrix."""

    def __init__(self, hidden: int, inner: int, build: Build) -> None:
        names = ("", "", "output_linear")
        super().__init__(hidden, inner, build, names=names, gate_up=stacked({"input_linear": 2 * inner}))


class MixtureOfExperts(nn.Module):
    """Softmax over the chosen experts' router logits."""

    def __init__(self, config: Config, build: Build) -> None:
        super().__init__()
        self.top_k = config.experts_per_token
        self.router = Router(config.hidden, config.experts, build, spellings=("router.weight", "router.layer.weight"))
        self.experts = Experts(
            config.hidden,
            config.expert_inner,
            config.experts,
            build,
            stacked_names=(
                ("experts.gate_up_proj", "experts.down_proj"),
                ("input_linear.weight", "output_linear.weight"),
            ),
        )

    def forward(self, x: Tensor) -> Tensor:
        chosen, ids = self.router(x).topk(self.top_k, dim=-1)  # [tokens, top_k], fp32
        out: Tensor = self.experts(x, ids, chosen.softmax(-1))
        return out


class GraniteLayer(Layer):
    def __init__(self, config: Config, kind: str, build: Build) -> None:
        super().__init__()
        self.kind, self.mlp_kind = kind, "moe" if config.experts else "dense"
        self.scale = config.residual_multiplier
        self.input_layernorm = RMSNorm(config.hidden, config.eps, build)
        self.mamba: Mamba2 | None = None
        self.self_attn: Attention | None = None
        if kind == "linear_attention":
            self.mamba = Mamba2(config.hidden, config.mamba, build)
            self.specs = self.mamba.specs
        else:
            self.self_attn = Attention(config.hidden, config.attention, build, bias=config.attention_bias)
            self.specs = self.self_attn.specs
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps, build)
        self.block_sparse_moe = MixtureOfExperts(config, build) if config.experts else None
        self.shared_mlp = SharedMLP(config.hidden, config.shared_inner, build)

    def bind(self, states: tuple[LayerState, ...]) -> None:
        mixer = self.mamba or self.self_attn
        assert mixer is not None
        (mixer.state,) = states

    def forward(
        self, delta: Tensor | None, residual: Tensor, batch: StepBatch, rotary: RotaryTable | None
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm.add(delta, residual, self.scale)
        if self.mamba is not None:
            x = self.mamba(x, batch)
        else:
            assert self.self_attn is not None
            x = self.self_attn(x, batch, rotary)
        x, residual = self.post_attention_layernorm.add(x, residual, self.scale)
        shared: Tensor = self.shared_mlp(x)
        return (shared if self.block_sparse_moe is None else self.block_sparse_moe(x) + shared), residual


class GraniteMoeHybrid(CausalModel):
    config_class: ClassVar[type[ModelConfig]] = Config

    def __init__(self, config: Config, build: Build, page_size: int, max_positions: int) -> None:
        super().__init__(config, build, page_size, max_positions)
        self.embedding_multiplier = config.embedding_multiplier
        self.residual_multiplier = config.residual_multiplier
        self.logits_divisor = config.logits_divisor
        self.rotary = None if config.rotary is None else RotaryTable(config.rotary, max_positions)
        self.plan = self.planned([GraniteLayer(config, kind, build) for kind in config.kinds])
        self.norm = RMSNorm(config.hidden, config.eps, build)

    def forward(self, batch: StepBatch) -> Tensor:
        residual = self.embed_tokens(batch.token_ids) * self.embedding_multiplier  # [tokens, hidden]
        delta: Tensor | None = None
        for layer in self.layers:
            delta, residual = layer(delta, residual, batch, self.rotary)
        hidden, _ = self.norm.add(delta, residual, self.residual_multiplier)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) / self.logits_divisor
