"""Facts as key-value lists, tables and records."""

from __future__ import annotations

import json

from demo.relations import ATTRIBUTE_KINDS, ATTRIBUTES, Relation, by_subject, generic, wording
from demo.values import VALUES
from demo.words import words
from demo.world import BLURRED_QUESTIONS, Ask, Block, Fact, World, capitalised

TABLE_KINDS = ("person", "person", "thing", "place", "project", "account", "ticket", "event")


def key_values(world: World, chars: int) -> Block:
    """One relation for many subjects, one line each."""
    rng = world.rng
    relation = world.relation()
    label = rng.choice(relation.labels)
    header = world.decorate(wording("list", "header")).format(l=label, L=capitalised(label))
    line = world.decorate(wording("list", "line"))
    lines = [header] if header else []
    asks: list[Ask] = []
    while chars > 0:
        # Without a header the line alone does not say what the value is; the question by key fits both.
        fact = world.fact(relation, world.subject(relation.subject), "list", label if header else "")
        lines.append(line.format(s=fact.subject, v=fact.value, n=len(asks) + 1))
        asks.append(world.ask(fact) if header and rng.random() < 0.7 else by_key(world, fact))
        chars -= len(lines[-1]) + 1
    return Block("\n".join(lines), asks)


def by_key(world: World, fact: Fact) -> Ask:
    """Ask for what stands behind the subject in the list."""

    def pose() -> tuple[str, str]:
        template = world.blurred(world.choose(wording("question", "key")), BLURRED_QUESTIONS)
        return world.question(template.format(s=fact.subject)), fact.value

    return Ask("list", pose)


def settings(world: World, chars: int) -> Block:
    """Bare keys, such as a configuration has, each with a value."""
    rng = world.rng
    line = world.decorate(wording("list", "line"))
    lines = [rng.choice(("Settings:", "Config", "Data:", "", "", "Values:"))]
    asks: list[Ask] = []
    seen: set[str] = set()
    while chars > 0 and len(seen) < 150:
        key = rng.choice(ATTRIBUTES) if rng.random() < 0.4 else rng.choice(words("artifact", world.split))
        if rng.random() < 0.3:
            key += rng.choice("_- ") + rng.choice(ATTRIBUTES)
        if key in seen:
            chars -= 4
            continue
        seen.add(key)
        value = VALUES[
            ATTRIBUTE_KINDS.get(key) or rng.choice(("code", "passcode", "artifact", "place", "date", "food"))
        ](rng, world.split)
        lines.append(line.format(s=key, v=value, n=len(asks) + 1))
        subject = key if rng.random() < 0.3 else f"the {key}"
        asks.append(setting(world, subject, value))
        chars -= len(lines[-1]) + 1
    return Block("\n".join(lines).lstrip("\n"), asks)


def setting(world: World, subject: str, value: str) -> Ask:
    def pose() -> tuple[str, str]:
        template = world.blurred(world.choose(wording("question", "key")), BLURRED_QUESTIONS)
        return world.question(template.format(s=subject)), value

    return Ask("list", pose)


def columns(world: World) -> tuple[str, list[Relation], list[str]]:
    """Kind of row, relations of the columns, and their labels, which all differ."""
    rng = world.rng
    kind = rng.choice(TABLE_KINDS)
    pool = list(by_subject(kind))
    pool += [generic(rng, kind) for _ in range(3)]
    rng.shuffle(pool)
    wanted = rng.choice((1, 2, 2, 3, 3, 4, 5))
    relations: list[Relation] = []
    labels: list[str] = []
    for relation in pool:
        label = rng.choice(relation.labels)
        if len(relations) < wanted and label not in (*labels, "id", "name"):
            relations.append(relation)
            labels.append(label)
    return kind, relations, labels


def table(world: World, chars: int) -> Block:
    """A table with a header: markdown, comma, tab, semicolon or bar separated."""
    rng = world.rng
    kind, relations, labels = columns(world)
    first = {"person": "name", "place": "place", "ticket": "id"}.get(kind, rng.choice(("name", "item")))
    style = rng.choice(("markdown", "markdown", ",", ", ", "\t", ";", " | "))
    raised = rng.random() < 0.6
    heads = [capitalised(head) if raised else head for head in (first, *labels)]

    def row(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |" if style == "markdown" else style.join(cells)

    lines = [row(heads)]
    if style == "markdown":
        lines.append("|" + "---|" * len(heads))
    asks: list[Ask] = []
    while chars > 0:
        subject = world.subject(kind)
        facts = [
            world.fact(relation, subject, "table", label) for relation, label in zip(relations, labels, strict=True)
        ]
        lines.append(row([subject, *(fact.value for fact in facts)]))
        asks.extend(world.ask(fact) for fact in facts)
        chars -= len(lines[-1]) + 1
    return Block("\n".join(lines), asks)


def records(world: World, chars: int) -> Block:
    """One small form per subject: lines of `Label: value`, or a JSON object."""
    rng = world.rng
    kind, relations, labels = columns(world)
    first = rng.choice(("name", "name", "id", "who" if kind == "person" else "what"))
    style = rng.choice(("lines", "lines", "json", "inline"))
    texts: list[str] = []
    asks: list[Ask] = []
    while chars > 0:
        subject = world.subject(kind)
        facts = [
            world.fact(relation, subject, "record", label) for relation, label in zip(relations, labels, strict=True)
        ]
        pairs = [(first, subject), *((fact.label, fact.value) for fact in facts)]
        if style == "json":
            texts.append(json.dumps(dict(pairs), ensure_ascii=False))
        elif style == "inline":
            texts.append(f"{subject} (" + ", ".join(f"{label}: {value}" for label, value in pairs[1:]) + ")")
        else:
            texts.append("\n".join(f"{capitalised(label)}: {value}" for label, value in pairs))
        asks.extend(world.ask(fact) for fact in facts)
        chars -= len(texts[-1]) + 1
    return Block(("\n\n" if style == "lines" else "\n").join(texts), asks)
