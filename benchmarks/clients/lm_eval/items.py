"""Writes the items: facts, a question, four possible answers of which one is right.

python -m benchmarks.clients.lm_eval.items > benchmarks/clients/lm_eval/items.jsonl
"""

import json
import random

COLORS = ("blue", "red", "green", "black", "white", "yellow", "brown", "grey")
ITEMS = 24


def item(chance: random.Random) -> dict[str, object]:
    colors = chance.sample(COLORS, 4)
    codes = [f"{chance.randrange(10_000):04}" for _ in colors]
    facts = " ".join(f"The code of the {color} door is {code}." for color, code in zip(colors, codes, strict=True))
    gold = chance.randrange(4)
    return {"question": f"{facts} What is the code of the {colors[gold]} door?", "choices": codes, "gold": gold}


if __name__ == "__main__":
    chance = random.Random(7)
    for _ in range(ITEMS):
        print(json.dumps(item(chance)))
