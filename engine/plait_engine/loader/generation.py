"""generation_config.json: which tokens end a text, and how the model's makers sample from it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait_engine.layer_plan import text_config
from plait_engine.models.config import ConfigError


@dataclass(frozen=True)
class Generation:
    """None where the model's makers say nothing."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read_generation(folder: Path, config: Mapping[str, Any]) -> Generation:
    """End tokens of generation_config.json and of config.json together; sampling from the former."""
    path = folder / "generation_config.json"
    values: Any = {}
    try:
        if path.is_file():
            values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    ends = [_end_ids(source.get("eos_token_id")) for source in (values, config, text_config(config))]
    greedy = values.get("do_sample") is False
    top_k = _number(values, "top_k", 0, math.inf)
    return Generation(
        eos_token_ids=tuple(dict.fromkeys(token for ids in ends for token in ids)),
        temperature=0.0 if greedy else _number(values, "temperature", 0, math.inf),
        top_p=_number(values, "top_p", 0, 1),
        top_k=None if top_k is None else int(top_k),
        min_p=_number(values, "min_p", 0, 1),
        repetition_penalty=_number(values, "repetition_penalty", 0, math.inf),
    )


def _end_ids(value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise ConfigError(f"eos_token_id must be a token id or a list of them, not {value!r}")
    return ids


def _number(values: dict[str, Any], key: str, low: float, high: float) -> float | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or value == math.inf:
        raise ConfigError(f"generation_config.json: {key} is {value!r}, which is not a number that it can be")
    return value
