"""Short stories in which people move and things change hands: the latest state is what counts."""

from __future__ import annotations

from demo.relations import wording
from demo.values import ROOMS
from demo.world import BLURRED_QUESTIONS, NOT_MENTIONED, Ask, Block, World

BLURRED_MOVES = 0.15


class Story:
    """People, rooms and things of one story, and where they are by now."""

    def __init__(self, world: World, people: int, things: int) -> None:
        self.world = world
        self.people = [world.subject("person") for _ in range(people)]
        self.things = [world.value("artifact", fresh=True) for _ in range(things)]
        self.rooms = world.rng.sample(ROOMS, min(len(ROOMS), people + 3))
        self.place: dict[str, str] = {}
        self.holder: dict[str, str] = {}

    def event(self) -> str:
        """One more sentence."""
        rng = self.world.rng
        kind = rng.random()
        if self.holder and kind < 0.3:
            return self._give(rng.choice(list(self.holder)))
        free = [thing for thing in self.things if thing not in self.holder]
        if free and self.place and kind < 0.55:
            return self._take(rng.choice(free))
        if kind > 0.93:
            return self.world.choose(wording("story", "filler"))
        return self._move()

    def _move(self) -> str:
        rng = self.world.rng
        person = rng.choice(self.people)
        room = rng.choice([room for room in self.rooms if room != self.place.get(person)])
        verb = "move" if person in self.place else "start"
        self.place[person] = room
        template = self.world.blurred(self.world.choose(wording("story", verb)), BLURRED_MOVES)
        return template.format(p=person, r=room)

    def _take(self, thing: str) -> str:
        person = self.world.rng.choice(list(self.place))
        self.holder[thing] = person
        return self.world.choose(wording("story", "take")).format(p=person, o=thing)

    def _give(self, thing: str) -> str:
        giver = self.holder[thing]
        receiver = self.world.rng.choice([person for person in self.people if person != giver])
        self.holder[thing] = receiver
        return self.world.choose(wording("story", "give")).format(p=giver, o=thing, r=receiver)

    def asks(self) -> list[Ask]:
        """Where everyone is and who has what; the latest told is asked most."""
        places = [self._ask("where", p=person) for person in self.people]
        return places + [self._ask("holder", o=thing) for thing in self.things]

    def _ask(self, template: str, **fields: str) -> Ask:
        def pose() -> tuple[str, str]:
            known = self.place if template == "where" else self.holder
            answer = known.get(next(iter(fields.values())), NOT_MENTIONED)
            words = self.world.blurred(self.world.choose(wording("story", template)), BLURRED_QUESTIONS)
            return self.world.question(words.format(**fields)), answer

        return Ask("story", pose)


def story(world: World, chars: int) -> Block:
    """A story of about `chars` characters, of at most 30 sentences."""
    rng = world.rng
    tale = Story(world, people=rng.randrange(2, 6), things=rng.randrange(1, 4))
    texts: list[str] = []
    while chars > 0 and len(texts) < 30:
        texts.append(tale.event())
        chars -= len(texts[-1]) + 1
    return Block(rng.choice((" ", " ", "\n")).join(texts), tale.asks())
