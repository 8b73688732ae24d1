"""What training may see and what it may not."""

from random import Random

import pytest

from demo import names
from demo.blocks.first_person import traits
from demo.dialogue import small_talk
from demo.relations import Wording, phrases, relations, wording
from demo.values import VALUES
from demo.words import words
from demo.world import World, held_out_prose

NOUNS = ("animal", "artifact", "food", "place", "plant")


def all_wordings() -> list[Wording]:
    found = [words for relation in relations() for words in (relation.facts, relation.questions, relation.reverse)]
    found += [words for trait in traits() for words in (trait.facts, trait.questions)]
    found += [says for _, says in small_talk()]
    named = [(group, name) for group, entry in phrases().items() for name in entry if not name.endswith("_held_out")]
    return found + [wording(group, name) for group, name in named]


def test_held_out_sentences_are_never_trained() -> None:
    assert all(not set(words.train) & set(words.held_out) for words in all_wordings())


def test_every_relation_has_at_least_eight_sentences_and_two_unseen_ones_each_way() -> None:
    assert len(relations()) >= 20
    for relation in relations():
        for wording_of in (relation.facts, relation.questions):
            assert len(wording_of.train) >= 8
            assert len(wording_of.held_out) >= 2


@pytest.mark.parametrize("kind", NOUNS)
def test_the_splits_share_no_noun(kind: str) -> None:
    assert not set(words(kind, "train")) & set(words(kind, "held_out"))
    assert words(kind, "held_out")


def test_held_out_names_carry_a_reserved_syllable_and_training_names_do_not() -> None:
    rng = Random(0)
    trained = {names.made_up(rng, "train", 2) for _ in range(4000)}
    unseen = {names.made_up(rng, "held_out", 2) for _ in range(4000)}
    assert not trained & unseen
    assert not set(names.OPEN) & set(names.CLOSED)


def test_the_splits_share_no_code() -> None:
    rng = Random(0)
    trained = {VALUES["code"](rng, "train") for _ in range(3000)}
    assert not trained & {VALUES["code"](rng, "held_out") for _ in range(3000)}


def test_unseen_phrasing_uses_only_held_out_sentences() -> None:
    world = World(Random(0), "held_out", True, held_out_prose())
    for words_of in all_wordings():
        if words_of.held_out:
            assert world.choose(words_of) in words_of.held_out


def test_words_are_blurred_in_training_only() -> None:
    template = "what does {s} carry around all day?"
    trained = World(Random(0), "train", False, held_out_prose())
    unseen = World(Random(0), "held_out", False, held_out_prose())
    assert any(trained.blurred(template, 1.0) != template for _ in range(5))
    assert all(unseen.blurred(template, 1.0) == template for _ in range(5))
    assert all("{s}" in trained.blurred(template, 1.0) for _ in range(20))
