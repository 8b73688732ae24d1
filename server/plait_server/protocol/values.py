"""Checks for fields that come in several forms; each gives one short finding where a pydantic union would give many."""

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

MAX_CHOICES = 128
MAX_PROMPTS = 4_096
MAX_STOPS = 32
MAX_STOP_CHARS = 1_024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1_024
MAX_LOGPROBS = 20
MAX_TEMPERATURE = 100.0
SEED_LIMIT = 2**63


def is_int(value: object) -> bool:
    """JSON's ``true`` is not 1."""
    return isinstance(value, int) and not isinstance(value, bool)


def all_ints(values: list[object]) -> bool:
    """Of a prompt of thousands of ids, which a check of each would take milliseconds for."""
    return set(map(type, values)) <= {int}


def stop_strings(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings are allowed, not {len(stops)}")
    if any(not 1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


def token_ids(value: Any) -> tuple[int, ...]:
    ids = [] if value is None else value
    if not isinstance(ids, list) or not all_ints(ids):
        raise ValueError("must be a list of token ids")
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"at most {MAX_STOP_TOKEN_IDS} token ids are allowed, not {len(ids)}")
    return tuple(ids)


def logit_bias(value: Any) -> dict[int, float]:
    """JSON's keys are strings; ``"17"`` is token 17."""
    given = {} if value is None else value
    if not isinstance(given, dict):
        raise ValueError("must be an object of token ids and numbers")
    if len(given) > MAX_LOGIT_BIAS:
        raise ValueError(f"at most {MAX_LOGIT_BIAS} entries are allowed, not {len(given)}")
    if not all(isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 12 for key in given):
        raise ValueError("keys must be token ids, written as decimal numbers")
    for bias in given.values():
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.fabs(bias) <= 100:
            raise ValueError("values must be numbers between -100 and 100")
    return {int(key): float(bias) for key, bias in given.items()}


def prompt_forms(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """A string, strings, ids, or lists of ids: as one tuple of prompts, each a string or ids."""
    forms = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise ValueError(forms)
    if not value:
        raise ValueError("must not be an empty list")
    if all_ints(value):
        return (tuple(value),)
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts are allowed, not {len(value)}")
    if set(map(type, value)) == {str}:
        return tuple(value)
    if not all(isinstance(item, list) and all_ints(item) for item in value):
        raise ValueError(forms)
    if not all(value):
        raise ValueError("must not hold an empty list")
    return tuple(tuple(item) for item in value)


def unlimited_top_k(value: Any) -> Any:
    """Clients write "no limit" as -1 or as 0."""
    return 0 if is_int(value) and value == -1 else value


LIST_OF_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
STRINGS = {"type": "array", "items": {"type": "string"}}

StopStrings = Annotated[
    tuple[str, ...],
    PlainValidator(stop_strings),
    WithJsonSchema({"anyOf": [{"type": "string"}, STRINGS | {"maxItems": MAX_STOPS}, {"type": "null"}]}),
]
TokenIds = Annotated[
    tuple[int, ...],
    PlainValidator(token_ids),
    WithJsonSchema({"anyOf": [LIST_OF_IDS | {"maxItems": MAX_STOP_TOKEN_IDS}, {"type": "null"}]}),
]
LogitBias = Annotated[
    dict[int, float],
    PlainValidator(logit_bias),
    WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]}),
]
Prompts = Annotated[
    tuple[str | tuple[int, ...], ...],
    PlainValidator(prompt_forms),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, STRINGS, LIST_OF_IDS, {"type": "array", "items": LIST_OF_IDS}]},
    ),
]
TopK = Annotated[int, BeforeValidator(unlimited_top_k), Field(ge=0, le=2**31 - 1)]
