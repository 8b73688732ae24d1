"""Facts as sentences, alone or between prose, and corrections of facts told before."""

from __future__ import annotations

from demo.relations import by_subject, generic, wording
from demo.world import Ask, Block, Fact, World

JOINTS = (" ", " ", " ", "\n", "\n", "\n- ", "\n\n")


def facts(world: World, chars: int, form: str = "facts") -> Block:
    """Sentences about several subjects, some of which have several facts. About `chars` characters."""
    rng = world.rng
    texts: list[str] = []
    asks: list[Ask] = []
    left = chars
    few_relations = [world.relation() for _ in range(rng.choice((1, 2, 3, 6)))] if rng.random() < 0.4 else []
    plain = rng.random() < 0.5
    while left > 0:
        relation = rng.choice(few_relations) if few_relations else world.relation()
        subject = world.subject(relation.subject)
        told = [relation]
        if rng.random() < 0.35:
            others = [other for other in by_subject(relation.subject) if other is not relation]
            told += rng.sample(others, min(len(others), rng.choice((1, 1, 2, 3))))
        for one in told:
            fact = world.fact(one, subject, form)
            around = "{F}" if plain else world.decorate(wording("fact", "around"))
            texts.append(world.tell(fact, around, alone=len(told) == 1))
            asks.append(world.ask(fact))
            left -= len(texts[-1]) + 1
    joint = rng.choice(JOINTS)
    start = "- " if joint == "\n- " else ""
    return Block(start + joint.join(texts), asks)


def needles(world: World, chars: int) -> Block:
    """A few facts with prose before, between and behind them."""
    rng = world.rng
    texts: list[str] = []
    asks: list[Ask] = []
    left = chars
    density = rng.choice((0.15, 0.3, 0.5))
    while left > 0:
        if rng.random() < density:
            block = facts(world, 1, form="needle")
            texts.append(block.text)
            asks.extend(block.asks)
        else:
            texts.append(rng.choice(world.prose))
        left -= len(texts[-1]) + 1
    return Block(rng.choice((" ", "\n", "\n\n")).join(texts), asks)


def filler(world: World, chars: int) -> Block:
    """Prose without facts."""
    texts: list[str] = []
    while chars > 0:
        texts.append(world.rng.choice(world.prose))
        chars -= len(texts[-1]) + 1
    return Block(world.rng.choice((" ", "\n")).join(texts), [])


def corrections(world: World, chars: int) -> Block:
    """New values for facts told before; what is asked from now on follows them."""
    rng = world.rng
    texts: list[str] = []
    asks: list[Ask] = []
    open_facts = [fact for fact in world.facts if fact.form != "correction"]
    while open_facts and chars > 0:
        fact = open_facts.pop(rng.randrange(len(open_facts)))
        correct(world, fact)
        texts.append(world.tell(fact, world.choose(wording("fact", "correction"))))
        asks.append(world.ask(fact))
        chars -= len(texts[-1]) + 1
    return Block(rng.choice((" ", "\n")).join(texts), asks)


def correct(world: World, fact: Fact) -> None:
    """Give the fact another value; its old form counts as corrected."""
    old = fact.value
    for _ in range(8):
        fact.value = world.value(fact.relation.value, fresh=bool(fact.relation.reverse.train))
        if fact.value != old:
            break
    fact.form = "correction"


def attributes(world: World, chars: int) -> Block:
    """Facts of relations that are named by any noun."""
    rng = world.rng
    texts: list[str] = []
    asks: list[Ask] = []
    kind = rng.choice(("person", "thing", "place", "project", "account"))
    named = list({relation.name: relation for relation in (generic(rng, kind) for _ in range(4))}.values())
    while chars > 0:
        subject = world.subject(kind)
        for relation in rng.sample(named, rng.randrange(1, len(named) + 1)):
            fact = world.fact(relation, subject, "facts")
            texts.append(world.tell(fact, "{F}"))
            asks.append(world.ask(fact))
            chars -= len(texts[-1]) + 1
    return Block(rng.choice(JOINTS[:5]).join(texts), asks)
