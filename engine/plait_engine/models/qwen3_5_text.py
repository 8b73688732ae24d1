"""Qwen3.5, dense: Qwen3-Next's layers, with the input matrices of Gated DeltaNet stored apart."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from plait_engine.models import qwen3_next
from plait_engine.models.causal import ModelConfig
from plait_engine.models.config import language_keys


@dataclass(frozen=True)
class Config(qwen3_next.Config):
    @classmethod
    def parse(cls, config: dict[str, Any]) -> Self:
        keys = language_keys(config, "qwen3_5_text")
        return cls.common(keys, config, (None,) * keys.integer("num_hidden_layers"), interleaved=False)


class Qwen3_5Text(qwen3_next.Qwen3Next):
    ignored: ClassVar[tuple[str, ...]] = ("mtp.", "model.visual.", "visual.")
    """Layers for predicting several tokens at once, and the encoder of images."""

    config_class: ClassVar[type[ModelConfig]] = Config
