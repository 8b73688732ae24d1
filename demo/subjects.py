"""What facts are about, one function for each kind of subject."""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random
from typing import Final

from demo import names
from demo.values import ADJECTIVES, COLOURS, digits
from demo.words import Split, word_list, words

CONTAINERS: Final = word_list("container")
PLAIN_THINGS: Final = word_list("plain_thing")
EVENTS: Final = word_list("event")
SHOPS: Final = word_list("shop")
TICKETS: Final = ("order", "ticket", "invoice", "case", "request", "task", "parcel", "issue")
TRAINS: Final = ("train", "bus", "tram", "flight", "ferry")
ACCOUNTS: Final = ("account", "server", "laptop", "network", "website", "router", "mailbox", "database")


def described(rng: Random, split: Split, noun: str, colours: bool = True) -> str:
    """`the blue door`, `the old door of Kelmo`; held-out ones always carry something unseen."""
    adjective = rng.choice(COLOURS if colours and rng.random() < 0.5 else ADJECTIVES)
    if split == "held_out" or rng.random() < 0.15:
        return f"the {adjective} {noun} of {names.proper(rng, split)}"
    return f"the {adjective} {noun}"


def thing(rng: Random, split: Split, colours: bool = True) -> str:
    kind = rng.random()
    if kind < 0.35:
        return described(rng, split, rng.choice(PLAIN_THINGS), colours)
    if kind < 0.85:
        adjective = rng.choice(COLOURS if colours and rng.random() < 0.5 else ADJECTIVES)
        return f"the {adjective} {rng.choice(words('artifact', split))}"
    if kind < 0.93:
        return f"the {rng.choice(words('artifact', split))}"
    return f"{rng.choice(('locker', 'door', 'box', 'unit', 'room'))} {rng.choice('ABCDEFGH')}{digits(rng, split, 3)}"


def plain_thing(rng: Random, split: Split) -> str:
    return thing(rng, split, colours=False)


def container(rng: Random, split: Split) -> str:
    kind = rng.random()
    if kind < 0.75:
        return described(rng, split, rng.choice(CONTAINERS))
    if kind < 0.85 and split == "train":
        return f"{rng.choice(CONTAINERS)} {rng.choice(string.ascii_uppercase)}"
    return f"{rng.choice(CONTAINERS)} {digits(rng, split, 3)}"


def account(rng: Random, split: Split) -> str:
    name = names.proper(rng, split)
    return rng.choice((name, f"the {name} {rng.choice(ACCOUNTS)}", f"the {rng.choice(ACCOUNTS)} {name}"))


def event(rng: Random, split: Split) -> str:
    if rng.random() < 0.5:
        return f"the {rng.choice(words(rng.choice(('artifact', 'food', 'animal')), split))} {rng.choice(EVENTS)}"
    return f"the {rng.choice(EVENTS)} {rng.choice(('with', 'of', 'for'))} {names.person(rng, split)}"


def project(rng: Random, split: Split) -> str:
    name = names.proper(rng, split)
    return rng.choice((name, f"project {name}", f"the {name} project", f"the {name} report", f"team {name}"))


def shop(rng: Random, split: Split) -> str:
    kind = rng.random()
    if kind < 0.3 and split == "train":
        return f"the {rng.choice(ADJECTIVES)} {rng.choice(SHOPS)}"
    if kind < 0.65:
        return f"the {rng.choice(SHOPS)} in {names.town(rng, split)}"
    return f"the {names.proper(rng, split)} {rng.choice(SHOPS)}"


def ticket(rng: Random, split: Split) -> str:
    return f"{rng.choice(TICKETS)} {digits(rng, split, rng.choice((3, 4, 5)))}"


def train(rng: Random, split: Split) -> str:
    if rng.random() < 0.5:
        return f"the {rng.choice(TRAINS)} to {names.town(rng, split)}"
    return f"{rng.choice(TRAINS)} {digits(rng, split, rng.choice((3, 4)))}"


def word(rng: Random, split: Split) -> str:
    return names.made_up(rng, split, 2)


def note(rng: Random, split: Split) -> str:
    kind = rng.choice(("note", "sign", "letter", "card", "poster", "label", "page"))
    if rng.random() < 0.5:
        return f"the {kind} {rng.choice(('from', 'of', 'for'))} {names.person(rng, split)}"
    return f"{kind} {digits(rng, split, 3)}"


SUBJECTS: Final[dict[str, Callable[[Random, Split], str]]] = {
    "account": account,
    "container": container,
    "event": event,
    "note": note,
    "person": names.person,
    "place": names.town,
    "plain_thing": plain_thing,
    "project": project,
    "shop": shop,
    "thing": thing,
    "ticket": ticket,
    "train": train,
    "word": word,
}
