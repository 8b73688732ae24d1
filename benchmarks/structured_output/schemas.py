"""JSON schemas made up by chance: nested, with unions, references (to themselves too), ranges, patterns, constants."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
NAMES = ("id", "name", "tags", "price", "size", "owner", "é", "a b", "x-1")
PATTERNS = ("^[a-c]{1,4}$", "^(red|green)$", "^[0-9]{2}:[0-9]{2}$", "^x{1,9}y?$")
FORMATS = ("date", "time", "uuid", "ipv4")


class SchemaWriter:
    """Every answer that fits has an end within some hundred tokens: lengths, items and depth are bounded."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"schema-{seed}")
        self._definitions: dict[str, Schema] = {}

    def schema(self) -> Schema:
        written = self._object(3)
        if self._definitions:
            written["$defs"] = self._definitions
        return written

    def _any(self, depth: int) -> Schema:
        simple: list[Callable[[], Schema]] = [self._string, self._number, self._constant, self._plain]
        nested: list[Callable[[int], Schema]] = [self._object, self._array, self._union, self._reference]
        if depth > 0 and self._chance.random() < 0.6:
            return self._chance.choice(nested)(depth - 1)
        return self._chance.choice(simple)()

    def _plain(self) -> Schema:
        return {"type": self._chance.choice(["boolean", "null"])}

    def _string(self) -> Schema:
        match self._chance.randrange(3):
            case 0:
                return {"type": "string", "pattern": self._chance.choice(PATTERNS)}
            case 1:
                return {"type": "string", "format": self._chance.choice(FORMATS)}
            case _:
                least = self._chance.randrange(3)
                return {"type": "string", "minLength": least, "maxLength": least + self._chance.randrange(1, 8)}

    def _number(self) -> Schema:
        low = self._chance.randrange(-100, 100)
        high = low + self._chance.randrange(1, 1_000)
        match self._chance.randrange(3):
            case 0:
                return {"type": "integer", "minimum": low, "maximum": high}
            case 1:
                return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 2}
            case _:
                return {"type": "integer", "multipleOf": self._chance.choice([2, 5, 10]), "minimum": 0, "maximum": 500}

    def _constant(self) -> Schema:
        options = self._chance.sample(["red", "green", 3, None, True, "", 'a\n"b"', -1.5], 3)
        return {"enum": options} if self._chance.random() < 0.7 else {"const": options[0]}

    def _array(self, depth: int) -> Schema:
        least = self._chance.randrange(3)
        if self._chance.random() < 0.25:
            items = [self._any(depth) for _ in range(2)]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}
        return {"type": "array", "items": self._any(depth), "minItems": least, "maxItems": least + 2}

    def _object(self, depth: int) -> Schema:
        names = self._chance.sample(NAMES, self._chance.randrange(1, 4))
        required = [name for name in names if self._chance.random() < 0.7]
        properties = {name: self._any(depth) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _union(self, depth: int) -> Schema:
        return {"anyOf": [self._any(depth) for _ in range(self._chance.randrange(2, 4))]}

    def _reference(self, depth: int) -> Schema:
        name = f"d{len(self._definitions)}"
        self._definitions[name] = {}
        if self._chance.random() < 0.4:
            own = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}
            self._definitions[name] = {
                "type": "object",
                "properties": {"value": self._number(), "next": own},
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        else:
            self._definitions[name] = self._any(depth)
        return {"$ref": f"#/$defs/{name}"}


def schemas(count: int) -> list[Schema]:
    return [SchemaWriter(seed).schema() for seed in range(count)]
