"""Things to count or to list, and texts to repeat."""

from __future__ import annotations

from demo.relations import wording
from demo.world import BLURRED_FACTS, BLURRED_QUESTIONS, Ask, Block, World, capitalised, with_article

MAX_COUNT = 6
MAX_NOTE_CHARS = 70


def belongings(world: World, chars: int) -> Block:
    """People with a few things each, to be counted or listed."""
    rng = world.rng
    texts: list[str] = []
    asks: list[Ask] = []
    while chars > 0:
        person = world.subject("person")
        things = [world.value("artifact", fresh=True) for _ in range(rng.randrange(1, MAX_COUNT + 1))]
        told = [with_article(thing) for thing in things]
        together = told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
        raw = world.choose(wording("count", "owned_one")).format(s=person, things=together)
        texts.append(capitalised(raw))
        asks.append(count(world, person, things))
        asks.append(enumeration(world, person, things))
        chars -= len(texts[-1]) + 1
    return Block(rng.choice((" ", "\n")).join(texts), asks)


def count(world: World, person: str, things: list[str]) -> Ask:
    def pose() -> tuple[str, str]:
        return world.question(world.choose(wording("count", "questions")).format(s=person)), str(len(things))

    return Ask("count", pose)


def enumeration(world: World, person: str, things: list[str]) -> Ask:
    def pose() -> tuple[str, str]:
        raw = world.choose(wording("count", "list_questions")).format(s=person)
        return world.question(raw), ", ".join(things)

    return Ask("listing", pose)


def notes(world: World, chars: int) -> Block:
    """Notes whose text is a sentence, to be repeated word for word."""
    rng = world.rng
    texts: list[str] = []
    asks: list[Ask] = []
    while chars > 0:
        note = world.subject("note")
        text = rng.choice(world.prose)
        while len(text) > MAX_NOTE_CHARS or '"' in text:
            text = rng.choice(world.prose)
        template = world.blurred(world.choose(wording("note", "facts")), BLURRED_FACTS)
        texts.append(capitalised(template.format(s=note, t=text)))
        asks.append(repetition(world, note, text))
        chars -= len(texts[-1]) + 1
    return Block(rng.choice((" ", "\n")).join(texts), asks)


def repetition(world: World, note: str, text: str) -> Ask:
    def pose() -> tuple[str, str]:
        template = world.blurred(world.choose(wording("note", "questions")), BLURRED_QUESTIONS)
        return world.question(template.format(s=note)), text

    return Ask("note", pose)
