"""Whole dialogues: context in one or several messages, questions, expected answers."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import exp, log
from random import Random
from typing import Final, Literal

from demo.blocks import belongings, first_person, lists, sentences, stories
from demo.relations import TEMPLATES_DIR, Wording, wording
from demo.words import Split
from demo.world import Ask, Block, World

Role = Literal["system", "user", "assistant"]

NOTED: Final = "Noted."

# Blocks and how often each is drawn.
BLOCKS: Final[dict[Callable[[World, int], Block], int]] = {
    sentences.facts: 26,
    sentences.needles: 16,
    sentences.attributes: 8,
    lists.key_values: 12,
    lists.settings: 6,
    lists.table: 10,
    lists.records: 8,
    first_person.about_me: 5,
    stories.story: 7,
    belongings.belongings: 4,
    belongings.notes: 3,
}
SINGLE_STATEMENTS: Final[dict[Callable[[World, int], Block], int]] = {
    sentences.facts: 8,
    sentences.attributes: 3,
    sentences.corrections: 2,
    first_person.about_me: 3,
    stories.story: 1,
    belongings.belongings: 1,
    belongings.notes: 1,
    lists.key_values: 1,
}
MAX_QUESTIONS: Final = 60
MISSING_SHARE: Final = 0.08
CHARS_PER_QUESTION: Final = 75  # question, answer and what the template adds, in characters of context


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str


@dataclass(slots=True)
class Dialogue:
    """Messages, and the form of each assistant message, in order."""

    messages: list[Message] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)

    def say(self, role: Role, content: str) -> None:
        self.messages.append(Message(role, content))

    def exchange(self, question: str, answer: str, form: str) -> None:
        """A user message and the reply to it."""
        self.say("user", question)
        self.say("assistant", answer)
        self.forms.append(form)


@cache
def small_talk() -> tuple[tuple[str, Wording], ...]:
    """(reply, what it replies to) of `templates/small_talk.toml`."""
    table = tomllib.loads((TEMPLATES_DIR / "small_talk.toml").read_text(encoding="utf-8"))
    return tuple(
        (entry["reply"], Wording(tuple(entry["says"]), tuple(entry["says_held_out"]))) for entry in table.values()
    )


class Writer:
    """Writes one dialogue of about `chars` characters.

    Args:
        rng: the only source of chance.
        split: which names and values are allowed.
        unseen_phrasing: use the held-out templates.
        prose: text for notes and distraction.
        chars: length to aim at.
        questions: how many questions to ask; by the length when not given.
        block: the only block to use, if given.
    """

    def __init__(
        self,
        rng: Random,
        split: Split,
        unseen_phrasing: bool,
        prose: tuple[str, ...],
        chars: int,
        questions: int | None = None,
        block: Callable[[World, int], Block] | None = None,
    ) -> None:
        self.rng = rng
        self.world = World(rng, split, unseen_phrasing, prose)
        self.chars = chars
        if questions is None:
            share = rng.choice((0.1, 0.25, 0.4, 0.6))
            questions = max(1, min(MAX_QUESTIONS, int(chars * share / CHARS_PER_QUESTION)))
        self.questions = questions
        self.block = block
        self.dialogue = Dialogue()
        self.open: list[Ask] = []  # what was not asked yet, in the order it was told
        self.asked: list[Ask] = []

    def write(self) -> Dialogue:
        layout = self.rng.random()
        # Without context there is nothing to find; such dialogues are short.
        if self.block is None and self.chars < 700 and layout < 0.04:
            self._bare()
        elif self.block is None and self.chars < 1500 and layout < 0.16:
            self.tell_singly()
        elif layout < 0.75:
            self._told_at_once()
        else:
            self._told_in_turns()
        return self.dialogue

    def _bare(self) -> None:
        """Small talk, and questions that nothing answers."""
        for _ in range(self.questions):
            if self.rng.random() < 0.6:
                self._chat()
            else:
                self._pose(self.world.ask_missing())

    def _told_at_once(self) -> None:
        """All facts in the system message or in the first user message."""
        context = self._context(max(40, self.chars - self.questions * CHARS_PER_QUESTION))
        layout = self.rng.random()
        if self.rng.random() < 0.05:
            self._chat()
        if layout < 0.4 and not self.dialogue.messages:
            head = self.world.decorate(wording("context", "system"))
            self.dialogue.say(
                "system", f"{head}{self.rng.choice((' ', chr(10), chr(10) * 2))}{context}" if head else context
            )
            self._question_turns(self.questions)
            return
        self._maybe_system()
        if layout < 0.75:
            question, answer, form = self._next()
            gap = self.rng.choice(("\n\n", "\n\n", "\n", " "))
            lead = self.rng.choice(wording("context", "ask").train)
            first = self.rng.random() < 0.15
            content = f"{question}\n\n{context}" if first else f"{context}{gap}{lead}{question}"
            self.dialogue.exchange(content, answer, form)
            self._question_turns(self.questions - 1)
        else:
            self.dialogue.exchange(context, NOTED, "noted")
            self._question_turns(self.questions)

    def _told_in_turns(self) -> None:
        """Facts in several user turns, questions and corrections between them."""
        self._maybe_system()
        parts = self.rng.randrange(2, 7)
        chars = max(40, (self.chars - self.questions * CHARS_PER_QUESTION) // parts)
        left = self.questions
        for part in range(parts):
            if part and self.world.facts and self.rng.random() < 0.35:
                block = sentences.corrections(self.world, min(chars, 300))
                text = block.text
                self.open.extend(block.asks)
            else:
                text = self._context(chars, intro=part == 0)
            if text:
                told = self.world.decorate(wording("turn", "tell")) + text
                self.dialogue.exchange(told, NOTED, "noted")
            now = left if part == parts - 1 else min(left - 1, self.rng.randrange(0, 2 * left // parts + 1))
            self._question_turns(now)
            left -= max(0, now)

    def tell_singly(self) -> None:
        """One statement a turn, as people do when they try a chat; questions after some of them."""
        self._maybe_system()
        while sum(len(message.content) for message in self.dialogue.messages) < self.chars:
            write = self.rng.choices(list(SINGLE_STATEMENTS), weights=list(SINGLE_STATEMENTS.values()))[0]
            block = write(self.world, 1)
            if not block.text:
                continue
            statement = self.world.decorate(wording("turn", "tell")) + block.text
            if self.rng.random() < 0.1:
                statement = statement.rstrip(".")
            self.dialogue.exchange(statement, NOTED, "noted")
            self.open.extend(block.asks)
            if self.rng.random() < 0.5:
                self._question_turns(self.rng.randrange(1, 4))

    def _maybe_system(self) -> None:
        if not self.dialogue.messages and self.rng.random() < 0.5:
            text = self.world.decorate(wording("context", "system"))
            if text:
                self.dialogue.say("system", text)

    def _context(self, chars: int, intro: bool = True) -> str:
        """Blocks of together about `chars` characters; what they tell is open to be asked."""
        texts: list[str] = []
        opening = self.world.decorate(wording("context", "intro")) if intro else ""
        left = chars
        prose_share = self.rng.choice((0.0, 0.0, 0.3, 0.6, 0.85)) if chars > 600 else 0.0
        if prose_share:
            before = int(chars * prose_share * self.rng.random())
            after = int(chars * prose_share) - before
        else:
            before = after = 0
        if before > 100:
            texts.append(sentences.filler(self.world, before).text)
        left -= before + after
        while left > 0:
            size = left if self.rng.random() < 0.6 else max(120, int(left * self.rng.random()))
            block = self._block()(self.world, min(left, size))
            texts.append(block.text)
            self.open.extend(block.asks)
            left -= len(block.text) + 2
        if self.world.facts and self.rng.random() < 0.12:
            block = sentences.corrections(self.world, min(200, max(40, chars // 10)))
            texts.append(block.text)
            self.open.extend(block.asks)
        if after > 100:
            texts.append(sentences.filler(self.world, after).text)
        joint = self.rng.choice(("\n\n", "\n\n", "\n"))
        body = joint.join(text for text in texts if text)
        return f"{opening}{self.rng.choice((chr(10), ' ', chr(10) * 2))}{body}" if opening else body

    def _block(self) -> Callable[[World, int], Block]:
        """The block asked for, or any. People tell about themselves once, so that block is not repeated."""
        repeated = self.block is first_person.about_me and self.world.about_user
        if self.block and not repeated:
            return self.block
        return self.rng.choices(list(BLOCKS), weights=list(BLOCKS.values()))[0]

    def _question_turns(self, count: int) -> None:
        for _ in range(count):
            if self.rng.random() < 0.02:
                self._chat()
            self.dialogue.exchange(*self._next())

    def _next(self) -> tuple[str, str, str]:
        """The next question: how far back its fact lies is log-uniform in the number of facts."""
        if not self.open:  # all was asked: ask again
            self.open, self.asked = self.asked, []
        if not self.open or self.rng.random() < MISSING_SHARE:
            ask = self.world.ask_missing()
        else:
            back = int(exp(self.rng.random() * log(len(self.open) + 1)))  # 1 .. len
            ask = self.open.pop(-min(back, len(self.open)))
            self.asked.append(ask)
        question, answer = ask.pose()
        return question, answer, ask.form

    def _pose(self, ask: Ask) -> None:
        question, answer = ask.pose()
        self.dialogue.exchange(question, answer, ask.form)

    def _chat(self) -> None:
        reply, says = self.rng.choice(small_talk())
        self.dialogue.exchange(self.world.choose(says), reply, "chat")
