"""Values that facts state, one function for each kind. A value is quoted letter for letter in the answer."""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random
from typing import Final

from demo import names
from demo.words import Split, is_held_out, word_list, words

COLOURS: Final = word_list("colour")
JOBS: Final = word_list("job")
MATERIALS: Final = word_list("material")
LANGUAGES: Final = word_list("language")
SPORTS: Final = word_list("sport")
INSTRUMENTS: Final = word_list("instrument")
ROOMS: Final = word_list("room")
STATUSES: Final = word_list("status")
WEEKDAYS: Final = word_list("weekday")
MONTHS: Final = word_list("month")
UNITS: Final = word_list("unit")
ADJECTIVES: Final = word_list("adjective")


def digits(rng: Random, split: Split, length: int) -> str:
    """So many random digits, of the right side of the split when there are three or more."""
    while True:
        text = "".join(rng.choices(string.digits, k=length))
        if length < 3 or is_held_out(text) == (split == "held_out"):
            return text


def code(rng: Random, split: Split) -> str:
    return digits(rng, split, rng.choice((3, 4, 4, 4, 5, 6, 8)))


def passcode(rng: Random, split: Split) -> str:
    """Something like `kelmo`, `Kelmo42`, `K7-4921` or `q8vz3k`."""
    kind = rng.random()
    if kind < 0.3:
        return names.made_up(rng, split, 2)
    if kind < 0.5:
        return names.proper(rng, split) + digits(rng, split, 2)
    if kind < 0.75:
        return f"{rng.choice(string.ascii_uppercase)}{rng.randrange(10)}-{digits(rng, split, 4)}"
    if kind < 0.9:
        return "".join(rng.choices(string.ascii_lowercase + string.digits, k=rng.randrange(5, 9)))
    return f"{rng.choice(words('animal', split))}-{rng.choice(words('food', split))}"


def phone(rng: Random, split: Split) -> str:
    return f"{digits(rng, split, 3)}{rng.choice('- ')}{digits(rng, split, 4)}"


def date(rng: Random, _split: Split) -> str:
    month, day = rng.choice(MONTHS), rng.randrange(1, 29)
    kind = rng.random()
    if kind < 0.4:
        return f"{day} {month}"
    if kind < 0.8:
        return f"{month} {day}"
    return f"{rng.randrange(1950, 2050)}-{MONTHS.index(month) + 1:02}-{day:02}"


def time(rng: Random, _split: Split) -> str:
    if rng.random() < 0.25:
        return f"{rng.randrange(1, 13)} {rng.choice(('am', 'pm'))}"
    return f"{rng.randrange(24)}:{rng.randrange(60):02}"


def price(rng: Random, _split: Split) -> str:
    amount = str(rng.randrange(1, 1000)) if rng.random() < 0.6 else f"{rng.randrange(1, 100)}.{rng.randrange(100):02}"
    return f"${amount}" if rng.random() < 0.4 else f"{amount} {rng.choice(('euros', 'dollars', 'pounds', 'coins'))}"


def quantity(rng: Random, _split: Split) -> str:
    return f"{rng.randrange(2, 1000)} {rng.choice(UNITS)}"


def email(rng: Random, split: Split) -> str:
    return f"{names.made_up(rng, split, 2)}@{names.made_up(rng, split, 2)}.{rng.choice(('com', 'org', 'net', 'io'))}"


def title(rng: Random, split: Split) -> str:
    adjective = rng.choice(ADJECTIVES).capitalize()
    noun = rng.choice(words(rng.choice(("artifact", "animal", "plant")), split)).capitalize()
    return f"The {adjective} {noun}" if rng.random() < 0.7 else f"{noun} of {names.proper(rng, split)}"


def place(rng: Random, split: Split) -> str:
    return rng.choice(words("place", split)) if rng.random() < 0.6 else names.town(rng, split)


def age(rng: Random, _split: Split) -> str:
    return str(rng.randrange(2, 100))


def room_number(rng: Random, split: Split) -> str:
    return digits(rng, split, rng.choice((2, 3, 3, 3, 4))).lstrip("0") or "7"


def small_number(rng: Random, _split: Split) -> str:
    return str(rng.randrange(1, 30))


def pick(options: tuple[str, ...]) -> Callable[[Random, Split], str]:
    """A kind with few values, the same for both splits."""
    return lambda rng, _split: rng.choice(options)


def noun(name: str) -> Callable[[Random, Split], str]:
    """A kind whose values are the WordNet nouns of one list."""
    return lambda rng, split: rng.choice(words(name, split))


VALUES: Final[dict[str, Callable[[Random, Split], str]]] = {
    "age": age,
    "animal": noun("animal"),
    "artifact": noun("artifact"),
    "code": code,
    "colour": pick(COLOURS),
    "date": date,
    "email": email,
    "food": noun("food"),
    "instrument": pick(INSTRUMENTS),
    "job": pick(JOBS),
    "language": pick(LANGUAGES),
    "material": pick(MATERIALS),
    "passcode": passcode,
    "person": names.person,
    "phone": phone,
    "place": place,
    "plant": noun("plant"),
    "price": price,
    "proper": names.proper,
    "quantity": quantity,
    "room_number": room_number,
    "small_number": small_number,
    "sport": pick(SPORTS),
    "spot": pick(ROOMS),
    "status": pick(STATUSES),
    "time": time,
    "title": title,
    "weekday": pick(WEEKDAYS),
}
