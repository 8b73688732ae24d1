"""The facts of one dialogue, and how they are put into words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random

from demo.relations import Relation, Wording, by_subject, generic, relations, wording
from demo.subjects import SUBJECTS
from demo.values import VALUES
from demo.words import Split, word_list

NOT_MENTIONED = "Not mentioned."

BLURRED_FACTS = 0.3
BLURRED_QUESTIONS = 0.35
PUNCTUATION = '?.!,:;"'
QUESTION_WORDS = frozenset(word_list("question_word"))
SMALL_WORDS = frozenset(word_list("small_word"))

# Kinds of value that the question word alone tells from all others.
WORD_OF_KIND = {
    "person": ("who", "whom", "whose"),
    "place": ("where",),
    "spot": ("where",),
    "date": ("when",),
    "time": ("when",),
    "weekday": ("when",),
}

NOUN_SHARE = 0.15  # of the questions about sentences that name the relation by a noun
# Labels that do not fit into `the LABEL of X`.
NOT_NOUNS = frozenset(word_list("not_a_noun"))
LABEL_SHARE = 0.5  # of the questions about lists and tables that name the label

# Relations whose questions no other relation's fact could answer: safe to ask when only others were told.
DISTINCT = frozenset(word_list("distinct_relation"))


@dataclass(slots=True)
class Fact:
    relation: Relation
    subject: str
    value: str
    form: str  # how it is told: facts, list, table, record, correction
    label: str = ""  # what a list or table calls the relation


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that can be asked now or later. `pose` gives question and answer as the facts stand when called."""

    form: str
    pose: Callable[[], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of context and what can be asked about it, in the order of its text."""

    text: str
    asks: list[Ask]


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"


@cache
def held_out_prose() -> tuple[str, ...]:
    """The committed example sentences of WordNet that training does not see."""
    return word_list("prose")


class World:
    """Draws subjects, values and wordings for one dialogue; no subject and no asked value occurs twice.

    Args:
        rng: the only source of chance.
        split: which names and values are allowed.
        unseen_phrasing: use the held-out templates for facts and questions.
        prose: sentences or paragraphs for notes and for the text between facts.
    """

    def __init__(self, rng: Random, split: Split, unseen_phrasing: bool, prose: tuple[str, ...]) -> None:
        self.rng = rng
        self.split: Split = split
        self.unseen_phrasing = unseen_phrasing
        self.prose = prose
        self.facts: list[Fact] = []
        self.about_user: dict[str, str] = {}  # what the user told about themselves
        self._taken: set[str] = set()

    def blurred(self, template: str, share: float) -> str:
        """The template with some words lost or replaced by any others, in so large a share of the cases.

        What stays is the names, the question words and most of the small words: so the model learns to find the
        fact by what is asked about, also in words that it does not know. Training only.
        """
        rng = self.rng
        if self.split != "train" or rng.random() >= share:
            return template
        loss = rng.choice((0.3, 0.6, 0.9))
        kept: list[str] = []
        for word in template.split(" "):
            bare = word.strip(PUNCTUATION)
            if (
                "{" in word
                or bare.lower() in QUESTION_WORDS
                or not bare
                or rng.random() >= (0.15 if bare.lower() in SMALL_WORDS else loss)
            ):
                kept.append(word)
            elif rng.random() < 0.75:
                kept.append(word.replace(bare, rng.choice(word_list("filler"))))
            elif word[-1] in PUNCTUATION and kept:
                kept[-1] += word[-1]
        return " ".join(kept) or template

    def choose(self, words: Wording) -> str:
        """A sentence; with unseen phrasing always a held-out one where there is one."""
        return self.rng.choice(words.held_out if self.unseen_phrasing and words.held_out else words.train)

    def decorate(self, words: Wording) -> str:
        """Like `choose` for words that do not carry the sense: with unseen phrasing held-out half of the time."""
        unseen = self.unseen_phrasing and words.held_out and self.rng.random() < 0.5
        return self.rng.choice(words.held_out if unseen else words.train)

    def subject(self, kind: str) -> str:
        """A subject that this dialogue does not know yet."""
        return self._new(SUBJECTS[kind])

    def value(self, kind: str, fresh: bool) -> str:
        """A value; `fresh` ones are not in the dialogue yet (kinds with few values may run out of those)."""
        if not fresh:
            return VALUES[kind](self.rng, self.split)
        return self._new(VALUES[kind])

    def _new(self, make: Callable[[Random, Split], str]) -> str:
        for _ in range(8):
            text = make(self.rng, self.split)
            if text.lower() not in self._taken:
                break
        self._taken.add(text.lower())
        return text

    def relation(self) -> Relation:
        """Any relation, one in five named by any noun."""
        relation = self.rng.choice(relations())
        return generic(self.rng, relation.subject) if self.rng.random() < 0.2 else relation

    def fact(self, relation: Relation, subject: str, form: str, label: str = "") -> Fact:
        """A new fact."""
        value = self.value(relation.value, fresh=bool(relation.reverse.train))
        fact = Fact(relation, subject, value, form, label)
        self.facts.append(fact)
        return fact

    def tell(self, fact: Fact, around: str, alone: bool = False) -> str:
        """The fact as a sentence inside the words `around` it. `alone`: the only fact about its subject."""
        template = self.choose(fact.relation.facts)
        if alone:
            template = self.blurred(template, BLURRED_FACTS)
        raw = template.format(s=fact.subject, v=fact.value, av=with_article(fact.value))
        return around.format(f=raw, F=capitalised(raw))

    def question(self, raw: str) -> str:
        """A question as somebody would type it, sometimes carelessly."""
        text = self.decorate(wording("question", "around")).format(q=raw, Q=capitalised(raw))
        if self.rng.random() < 0.05:
            text = text.rstrip("?.")
        return text[0].lower() + text[1:] if self.rng.random() < 0.06 else text

    def ask(self, fact: Fact) -> Ask:
        """Ask for the value of a fact, or for its subject."""

        def pose() -> tuple[str, str]:
            relation = fact.relation
            if relation.reverse.train and self.rng.random() < 0.3 and self._only_holder(fact):
                template = self.blurred(self.choose(relation.reverse), BLURRED_QUESTIONS)
                raw = template.format(v=fact.value, av=with_article(fact.value))
                return self.question(raw), fact.subject
            label = fact.label or self._noun(relation)
            if label and self.rng.random() < (LABEL_SHARE if fact.label else NOUN_SHARE):
                template = self.blurred(self.choose(wording("question", "label")), BLURRED_QUESTIONS)
                raw = template.format(l=label, s=fact.subject)
            else:
                template = self.choose(relation.questions)
                if self._recognisable(fact, template):
                    template = self.blurred(template, BLURRED_QUESTIONS)
                raw = template.format(s=fact.subject)
            return self.question(raw), fact.value

        return Ask(fact.form, pose)

    def _noun(self, relation: Relation) -> str:
        """A label that is a noun, so that one can ask for `the LABEL of X`; empty if there is none."""
        nouns = [label for label in relation.labels if label not in NOT_NOUNS]
        return self.rng.choice(nouns) if nouns else ""

    def _recognisable(self, fact: Fact, template: str) -> bool:
        """Whether the question finds this fact even if only its subject and the question word stay."""
        others = [other for other in self.facts if other.subject == fact.subject and other is not fact]
        if not others:
            return True
        words = WORD_OF_KIND.get(fact.relation.value, ())
        alike = any(set(WORD_OF_KIND.get(other.relation.value, ())) & set(words) for other in others)
        return not alike and any(word in words for word in template.split(" "))

    def _only_holder(self, fact: Fact) -> bool:
        """Whether the value leads back to this fact alone. `where is the X` also fits other relations' values."""
        value = fact.value.lower()
        names = [name.lower().removeprefix("the ") for other in self.facts for name in (other.value, other.subject)]
        return names.count(value.removeprefix("the ")) == 1

    def ask_missing(self) -> Ask:
        """Ask for what no fact tells: an unknown subject, an untold relation of a known one, an unknown value."""

        def pose() -> tuple[str, str]:
            if self.facts and self.rng.random() < 0.8:
                fact = self.rng.choice(self.facts)
                relation = fact.relation
            else:
                fact, relation = None, self.relation()
            kind = self.rng.random()
            if kind < 0.2 and fact is not None:
                told = {other.relation.name for other in self.facts if other.subject == fact.subject}
                others = by_subject(relation.subject)
                untold = [other for other in others if other.name in DISTINCT and other.name not in told]
                if untold:
                    raw = self.choose(self.rng.choice(untold).questions).format(s=fact.subject)
                    return self.question(raw), NOT_MENTIONED
            if kind < 0.4 and relation.reverse.train and relation.value not in ("spot", "person"):
                value = self.value(relation.value, fresh=True)
                if not any(value == other.value for other in self.facts):
                    raw = self.choose(relation.reverse).format(v=value, av=with_article(value))
                    return self.question(raw), NOT_MENTIONED
            template = self.blurred(self.choose(relation.questions), BLURRED_QUESTIONS)
            return self.question(template.format(s=self.subject(relation.subject))), NOT_MENTIONED

        return Ask("missing", pose)
