"""Reading an architecture's configuration strictly: what is missing or unsupported is named, never guessed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from plait_engine.layer_plan import text_config


class ConfigError(ValueError):
    """config.json lacks a key, or asks for something that the architecture's implementation does not do."""


_REQUIRED = object()


@dataclass(frozen=True)
class Keys:
    """The language model's part of a config.json. Without a ``default``, a key must be there and not be null."""

    values: Mapping[str, Any]
    model_type: str

    def integer(self, key: str, default: int | object = _REQUIRED) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key} must be an integer, not {value!r}")
        return value

    def number(self, key: str, default: float | object = _REQUIRED) -> float:
        return self._number(key, self._get(key, default))

    def range(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise self.error(f"{key} must be two numbers, not {value!r}")
        return self._number(key, value[0]), self._number(key, value[1])

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, dict) and value.keys() == {"__float__"}:  # how transformers writes what JSON cannot
            value = float(value["__float__"])
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key} must be a number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool | object = _REQUIRED) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def optional_number(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def one_of(self, key: str, supported: Collection[object], default: object = _REQUIRED) -> None:
        """Refuse any value but the supported ones."""
        value = self._get(key, default)
        if value not in supported:
            raise self.error(f"{key} is {value!r}; supported: {', '.join(map(repr, supported))}")

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"config.json of a {self.model_type} model: {text}")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(f"{key} is missing")
        return default


def language_keys(config: Mapping[str, Any], model_type: str) -> Keys:
    """The keys of the language model. Tied embeddings are the wrapping model's affair, so its word counts first."""
    text = dict(text_config(config))
    if "tie_word_embeddings" in config:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    return Keys(text, model_type)
