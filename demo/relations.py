"""Relations between a subject and a value, with the sentences that state them and ask for them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from demo.words import word_list

TEMPLATES_DIR: Final = Path(__file__).parent / "templates"

# Names of the relations that are made up per dialogue.
ATTRIBUTES: Final = word_list("attribute")

# For these the value is of the kind that the name promises; all other attributes take any kind.
ATTRIBUTE_KINDS: Final = {
    "colour": "colour",
    "owner": "person",
    "captain": "person",
    "founder": "person",
    "chairman": "person",
    "price": "price",
    "location": "spot",
    "password": "passcode",
    "code": "code",
    "number": "code",
    "mascot": "animal",
    "tool": "artifact",
    "gift": "artifact",
    "prize": "artifact",
    "region": "place",
    "capital": "place",
    "king": "person",
    "queen": "person",
    "president": "person",
    "doctor": "person",
    "teacher": "person",
    "coach": "person",
    "driver": "person",
    "neighbour": "person",
    "dog": "proper",
    "cat": "proper",
    "horse": "proper",
    "boat": "proper",
}
ANY_KINDS: Final = (
    "code", "passcode", "artifact", "animal", "food", "plant", "place", "person", "small_number", "quantity", "date",
    "time", "colour", "title", "status",
)  # fmt: skip

Phrases = dict[str, dict[str, list[str]]]


@dataclass(frozen=True, slots=True)
class Wording:
    """Sentences of one purpose: those that training sees, and those that only tests see."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def filled(self, **fields: str) -> Wording:
        """The same sentences with some of their fields put in."""

        def fill(text: str) -> str:
            for name, value in fields.items():
                text = text.replace("{" + name + "}", value)
            return text

        return Wording(tuple(map(fill, self.train)), tuple(map(fill, self.held_out)))


@dataclass(frozen=True, slots=True)
class Relation:
    name: str
    subject: str  # kind of subject, a key of subjects.SUBJECTS
    value: str  # kind of value, a key of values.VALUES
    labels: tuple[str, ...]
    facts: Wording
    questions: Wording
    reverse: Wording  # empty where the subject cannot be asked for


@cache
def phrases() -> Phrases:
    """`templates/phrases.toml`."""
    return tomllib.loads((TEMPLATES_DIR / "phrases.toml").read_text(encoding="utf-8"))


@cache
def wording(group: str, name: str) -> Wording:
    """One entry of `phrases.toml` with its held-out sentences."""
    entry = phrases()[group]
    return Wording(tuple(entry[name]), tuple(entry.get(f"{name}_held_out", ())))


@cache
def relations() -> tuple[Relation, ...]:
    """`templates/relations.toml`."""
    tables: dict[str, dict[str, Any]] = tomllib.loads((TEMPLATES_DIR / "relations.toml").read_text(encoding="utf-8"))

    def part(table: dict[str, Any], name: str) -> Wording:
        return Wording(tuple(table.get(name, ())), tuple(table.get(f"{name}_held_out", ())))

    return tuple(
        Relation(
            name=name,
            subject=table["subject"],
            value=table["value"],
            labels=tuple(table["labels"]),
            facts=part(table, "facts"),
            questions=part(table, "questions"),
            reverse=part(table, "reverse"),
        )
        for name, table in tables.items()
    )


@cache
def by_subject(kind: str) -> tuple[Relation, ...]:
    """All relations whose subject is of this kind."""
    return tuple(relation for relation in relations() if relation.subject == kind)


def generic(rng: Random, subject: str) -> Relation:
    """A relation named by any noun, between a subject of the given kind and any kind of value."""
    label = rng.choice(ATTRIBUTES)
    return Relation(
        name=f"generic {label}",
        subject=subject,
        value=ATTRIBUTE_KINDS.get(label) or rng.choice(ANY_KINDS),
        labels=(label,),
        facts=wording("generic", "facts").filled(l=label),
        questions=wording("question", "label").filled(l=label),
        reverse=wording("generic", "reverse").filled(l=label),
    )
