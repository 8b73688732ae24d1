"""Regular expressions made up by chance, in what Rust's and Python's syntax have in common."""

import random

CLASSES = ("[a-z]", "[0-9]", "[A-F0-9]", r"\d", "[^a-y \n]", "[äöü]", "[._-]")
WORDS = ("red", "Rome", "x/y", r"a\.b", "日本", "no", r"\(\)")
COUNTS = ("", "", "?", "{2}", "{1,3}", "{0,4}")


def regexes(count: int) -> list[str]:
    return [sequence(random.Random(f"regex-{seed}"), 3) for seed in range(count)]


def sequence(chance: random.Random, depth: int) -> str:
    return "".join(part(chance, depth) for _ in range(chance.randrange(1, 4)))


def part(chance: random.Random, depth: int) -> str:
    if depth and chance.random() < 0.4:
        options = "|".join(sequence(chance, depth - 1) for _ in range(chance.randrange(1, 4)))
        return f"(?:{options})" + chance.choice(COUNTS)
    if chance.random() < 0.4:
        return chance.choice(WORDS)
    return chance.choice(CLASSES) + chance.choice(COUNTS)
