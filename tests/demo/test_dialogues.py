"""Generated dialogues: reproducible, answerable from their own text, and the latest fact wins."""

from random import Random

import pytest

from demo.blocks.sentences import correct
from demo.blocks.stories import Story
from demo.dialogue import NOTED, Dialogue, Writer, small_talk
from demo.relations import relations
from demo.words import Split
from demo.world import NOT_MENTIONED, World, held_out_prose

SPLITS: tuple[Split, ...] = ("train", "held_out")
FIXED = {NOT_MENTIONED, NOTED, *(reply for reply, _ in small_talk())}


def dialogue(seed: int, split: Split = "train", chars: int = 900) -> Dialogue:
    return Writer(Random(seed), split, split == "held_out", held_out_prose(), chars).write()


def test_the_same_seed_gives_the_same_dialogue() -> None:
    assert all(dialogue(seed) == dialogue(seed) for seed in range(20))
    assert dialogue(1) != dialogue(2)


@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_stands_in_the_text_before_it(split: Split) -> None:
    for seed in range(80):
        before = ""
        one = dialogue(seed, split)
        forms = iter(one.forms)
        for message in one.messages:
            if message.role == "assistant" and next(forms) not in ("count", "listing") and message.content not in FIXED:
                assert message.content.lower() in before.lower()
            before += message.content


@pytest.mark.parametrize("split", SPLITS)
def test_every_reply_has_a_form_and_follows_a_user(split: Split) -> None:
    for seed in range(40):
        one = dialogue(seed, split)
        roles = [message.role for message in one.messages]
        assert roles.count("assistant") == len(one.forms) > 0
        assert all(roles[index - 1] == "user" for index, role in enumerate(roles) if role == "assistant")
        assert "system" not in roles[1:]


def test_after_a_correction_the_new_value_is_the_answer() -> None:
    world = World(Random(3), "train", False, held_out_prose())
    relation = next(relation for relation in relations() if relation.name == "access_code")
    fact = world.fact(relation, world.subject("thing"), "facts")
    ask = world.ask(fact)
    old = fact.value
    correct(world, fact)
    answers = {ask.pose()[1] for _ in range(20)}
    assert fact.value != old
    assert answers <= {fact.value, fact.subject}


def test_a_story_asks_for_the_last_place_and_the_last_holder() -> None:
    story = Story(World(Random(5), "train", False, held_out_prose()), people=3, things=2)
    for _ in range(40):
        story.event()
    assert [ask.pose()[1] for ask in story.asks()] == [
        *(story.place.get(person, NOT_MENTIONED) for person in story.people),
        *(story.holder.get(thing, NOT_MENTIONED) for thing in story.things),
    ]


def test_an_unknown_subject_is_not_mentioned() -> None:
    world = World(Random(1), "train", False, held_out_prose())
    assert world.ask_missing().pose()[1] == NOT_MENTIONED
