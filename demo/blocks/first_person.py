"""What the user tells about themselves; each thing once in a dialogue, later tellings replace earlier ones."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from demo.relations import TEMPLATES_DIR, Wording, wording
from demo.world import NOT_MENTIONED, Ask, Block, World, capitalised, with_article


@dataclass(frozen=True, slots=True)
class Trait:
    name: str
    value: str  # kind of value
    facts: Wording
    questions: Wording


@cache
def traits() -> tuple[Trait, ...]:
    """`templates/me.toml`."""
    tables: dict[str, dict[str, Any]] = tomllib.loads((TEMPLATES_DIR / "me.toml").read_text(encoding="utf-8"))
    return tuple(
        Trait(
            name,
            table["value"],
            Wording(tuple(table["facts"]), tuple(table["facts_held_out"])),
            Wording(tuple(table["questions"]), tuple(table["questions_held_out"])),
        )
        for name, table in tables.items()
    )


def about_me(world: World, chars: int) -> Block:
    """A few sentences in the first person. About one in ten questions is for something untold."""
    rng = world.rng
    texts: list[str] = []
    asks: list[Ask] = []
    plain = rng.random() < 0.7
    for trait in rng.sample(traits(), rng.randrange(1, 8)):
        if chars <= 0:
            break
        if rng.random() < 0.1 and trait.name not in world.about_user:
            asks.append(ask_trait(world, trait))
            continue
        value = world.value(trait.value, fresh=True)
        raw = world.choose(trait.facts).format(v=value, av=with_article(value))
        around = "{F}" if plain else world.decorate(wording("fact", "around"))
        if trait.name in world.about_user:
            around = world.choose(wording("fact", "correction"))
        world.about_user[trait.name] = value
        texts.append(around.format(f=raw, F=capitalised(raw)))
        asks.append(ask_trait(world, trait))
        chars -= len(texts[-1]) + 1
    return Block(" ".join(texts), asks)


def ask_trait(world: World, trait: Trait) -> Ask:
    def pose() -> tuple[str, str]:
        return world.question(world.choose(trait.questions)), world.about_user.get(trait.name, NOT_MENTIONED)

    return Ask("first_person", pose)
