"""Qwen3.5, mixture of experts: as the dense one, with experts in every layer."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from plait_engine.models import qwen3_next
from plait_engine.models.causal import ModelConfig
from plait_engine.models.config import language_keys
from plait_engine.models.qwen3_5_text import Qwen3_5Text


@dataclass(frozen=True)
class Config(qwen3_next.Config):
    @classmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        keys = language_keys(config, "qwen3_5_moe_text")
        moe = qwen3_next.moe_shape(keys, renormalise=True)
        if moe is None:
            raise keys.error("num_experts is 0")
        return cls.common(keys, config, (moe,) * keys.integer("num_hidden_layers"), interleaved=False)


class Qwen3_5MoeText(Qwen3_5Text):
    config_class: ClassVar[type[ModelConfig]] = Config
