"""Reading an architecture's configuration strictly: what is missing or unsupported is named, never guessed."""

import math
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

    def integer(self, key: str, default: int | object = _REQUIRED, *, at_least: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.error(f"{key} must be an integer of at least {at_least}, not {value!r}")
        return value

    def number(self, key: str, default: float | object = _REQUIRED) -> float:
        """A finite positive number."""
        value = self._number(key, self._get(key, default))
        if not 0 < value < math.inf:
            raise self.error(f"{key} must be a positive number, not {value!r}")
        return value

    def optional_number(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def range(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise self.error(f"{key} must be two numbers, not {value!r}")
        return self._number(key, value[0]), self._number(key, value[1])

    def flag(self, key: str, default: bool | object = _REQUIRED) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def indices(self, key: str) -> frozenset[int]:
        """A list of layers; absent or null is none."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            raise self.error(f"{key} must be a list of layer numbers, not {value!r}")
        return frozenset(value)

    def group(self, key: str) -> "Keys | None":
        """The keys of an object within; None where it is absent or null."""
        value = self._get(key, None)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(f"{key} must be an object, not {value!r}")
        return None if value is None else Keys(value, self.model_type)

    def one_of(self, key: str, supported: Collection[object], default: object = _REQUIRED) -> None:
        """Refuse any value but the supported ones."""
        value = self._get(key, default)
        if value not in supported:
            raise self.error(f"{key} is {value!r}; supported: {', '.join(map(repr, supported))}")

    def multiple(self, key: str, of: str) -> None:
        """Refuse heads that do not divide into groups."""
        if self.integer(key) % self.integer(of):
            raise self.error(f"{key} {self.integer(key)} is not a multiple of {of} {self.integer(of)}")

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"config.json of a {self.model_type} model: {text}")

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, dict) and value.keys() == {"__float__"}:  # how transformers writes what JSON cannot
            value = float(value["__float__"])
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key} must be a number, not {value!r}")
        return float(value)

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(f"{key} is missing")
        return default


def language_keys(config: Mapping[str, Any], model_type: str, defaults: Mapping[str, Any] | None = None) -> Keys:
    """The keys of the language model. Tied embeddings are the wrapping model's affair, so its word counts first.

    ``defaults`` are for keys that published configurations of the architecture leave out.
    """
    text = {**(defaults or {}), **text_config(config)}
    if "tie_word_embeddings" in config:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    return Keys(text, model_type)
