"""Prose and word lists out of four permissively licensed Debian packages.

    python -m demo.corpus --packages DIR --out DIR [--words]

`DIR` holds the packages unpacked side by side (`dpkg -x FILE.deb DIR`): wordnet-base, python3.11-doc,
postgresql-doc-15 and sqlite3-doc. The prose is written to `OUT/prose.txt`, one paragraph a line. With `--words` the
small lists in `demo/words/`, which are committed, are written again.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from demo.words import WORDS_DIR, word_list

HTML_FOLDERS = (
    "usr/share/doc/python3.11/html",
    "usr/share/doc/postgresql-doc-15/html",
    "usr/share/doc/sqlite3",
)
WORDNET_FOLDER = "usr/share/wordnet"

# Lexicographer files of WordNet (lexnames(5WN)) that serve as kinds of value.
NOUN_FILES = {5: "animal", 6: "artifact", 13: "food", 20: "plant"}
PLACE_FILE = 15

# Coarse or hurtful in one of their senses; a demo should not offer them as somebody's pet or supper.
UNWANTED: Final = frozenset(word_list("unwanted"))

MIN_PARAGRAPH_CHARS = 60
HELD_OUT_PROSE_CHARS = 150_000
FILLER_WORDS = 4000

PROSE_TAGS = frozenset({"p", "dd", "li"})
SKIPPED_TAGS = frozenset({"script", "style", "pre", "table", "nav", "head", "sup"})


class ParagraphParser(HTMLParser):
    """Collects the running text of paragraphs, list items and definitions, without code blocks and tables."""

    def __init__(self) -> None:
        super().__init__()
        self.paragraphs: list[str] = []
        self._text: list[str] = []
        self._skipped_depth = 0
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in SKIPPED_TAGS:
            self._skipped_depth += 1
        elif tag in PROSE_TAGS:
            self._flush()
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in SKIPPED_TAGS:
            self._skipped_depth = max(0, self._skipped_depth - 1)
        elif tag in PROSE_TAGS:
            self._flush()
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside and not self._skipped_depth:
            self._text.append(data)

    def _flush(self) -> None:
        text = " ".join("".join(self._text).split())
        self._text.clear()
        if text:
            self.paragraphs.append(text)


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph reads as sentences rather than as a signature, a heading or a list of names."""
    if len(paragraph) < MIN_PARAGRAPH_CHARS or paragraph[-1] not in ".!?:" or not paragraph[0].isupper():
        return False
    if not paragraph.isascii():
        return False
    plain = sum(character.isalpha() or character in " ,.'" for character in paragraph)
    return plain >= 0.93 * len(paragraph)


def html_paragraphs(root: Path) -> Iterator[str]:
    """Paragraphs of all HTML pages below the documentation folders of `root`, in a fixed order."""
    for folder in HTML_FOLDERS:
        for page in sorted((root / folder).rglob("*.html")):
            parser = ParagraphParser()
            parser.feed(page.read_text(encoding="utf-8", errors="ignore"))
            yield from (text.replace("\u00b6", "").strip() for text in parser.paragraphs)


def wordnet_glosses(root: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(word, definition, quoted examples) of every WordNet entry, in file order."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (root / WORDNET_FOLDER / f"data.{part}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):  # the licence stands in front of the data
                continue
            entry, _, gloss = line.partition("|")
            word = entry.split()[4].replace("_", " ").split("(")[0]
            examples = [text for text in re.findall(r'"([^"]+)"', gloss) if text.isascii()]
            definition = re.split(r';\s*"', gloss)[0].strip().rstrip(";")
            if definition.isascii() and '"' not in definition:
                yield word, definition, examples


def wordnet_paragraphs(root: Path) -> tuple[list[str], list[str]]:
    """Dictionary lines, and example sentences alone (first letter raised, full stop added)."""
    lines: list[str] = []
    examples: list[str] = []
    for word, definition, quotes in wordnet_glosses(root):
        sentences = [sentence(quote) for quote in quotes if len(quote.split()) >= 4]
        examples.extend(sentences)
        lines.append(" ".join([f"{word[0].upper()}{word[1:]}: {definition}.", *sentences]))
    return lines, examples


def sentence(text: str) -> str:
    """`text` with a capital in front and a full stop behind."""
    text = text.strip()
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def unique(paragraphs: Iterator[str]) -> list[str]:
    """The paragraphs without repeats, in the order of their first sight."""
    return list(dict.fromkeys(paragraphs))


def noun_lists(root: Path) -> dict[str, list[str]]:
    """Kind of value -> WordNet lemmas whose first sense is of that kind, as they are written."""
    folder = root / WORDNET_FOLDER
    first_sense: dict[str, str] = {}
    for line in (folder / "index.noun").read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            fields = line.split()
            first_sense[fields[0]] = fields[4 + int(fields[3]) + 2]
    lists: dict[str, set[str]] = {kind: set() for kind in (*NOUN_FILES.values(), "place")}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue
        fields = line.split()
        offset, file_number, count = fields[0], int(fields[1]), int(fields[3], 16)
        for word in fields[4 : 4 + 2 * count : 2]:
            if first_sense.get(word.lower()) != offset or not word.isalpha() or not 3 <= len(word) <= 10:
                continue
            if word.lower() in UNWANTED:
                continue
            if file_number in NOUN_FILES and word.islower():
                lists[NOUN_FILES[file_number]].add(word)
            elif file_number == PLACE_FILE and word[0].isupper() and word[1:].islower():
                lists["place"].add(word)
    return {kind: sorted(words) for kind, words in lists.items()}


def filler_words(root: Path) -> list[str]:
    """Common verbs (some of them inflected), adjectives and adverbs."""
    found: set[str] = set()
    for part in ("verb", "adj", "adv"):
        for line in (root / WORDNET_FOLDER / f"index.{part}").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if line.startswith(" ") or not fields[0].isalpha() or not 3 <= len(fields[0]) <= 9:
                continue
            seen_senses = int(fields[4 + int(fields[3]) + 1])  # senses that occur in the tagged texts
            if not seen_senses or fields[0] in UNWANTED:
                continue
            found.add(fields[0])
            if part == "verb":
                stem = fields[0].removesuffix("e")
                found |= {f"{stem}ed", f"{fields[0]}s" if fields[0][-1] not in "shxzy" else fields[0]}
    return sorted(random.Random(0).sample(sorted(found), FILLER_WORDS))


def write_words(root: Path, examples: list[str]) -> set[str]:
    """Write `demo/words/`; returns the example sentences that are kept out of training."""
    for kind, words in noun_lists(root).items():
        (WORDS_DIR / f"{kind}.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (WORDS_DIR / "filler.txt").write_text("\n".join(filler_words(root)) + "\n", encoding="utf-8")
    shuffled = sorted(examples)
    random.Random(0).shuffle(shuffled)
    held_out: list[str] = []
    size = 0
    for text in shuffled:
        if size >= HELD_OUT_PROSE_CHARS:
            break
        held_out.append(text)
        size += len(text) + 1
    (WORDS_DIR / "prose.txt").write_text("\n".join(held_out) + "\n", encoding="utf-8")
    return set(held_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder with the unpacked packages")
    parser.add_argument("--out", type=Path, required=True, help="folder for the prose")
    parser.add_argument("--words", action="store_true", help="write the committed word lists again")
    options = parser.parse_args()
    lines, examples = wordnet_paragraphs(options.packages)
    examples = unique(iter(examples))
    if options.words:
        held_out = write_words(options.packages, examples)
    else:
        held_out = set((WORDS_DIR / "prose.txt").read_text(encoding="utf-8").splitlines())
    documentation = [text for text in unique(html_paragraphs(options.packages)) if is_prose(text)]
    # A dictionary line that quotes a held-out example goes, so that the held-out prose is really unseen.
    lines = [line for line in unique(iter(lines)) if not any(text in line for text in quotes_of(line, held_out))]
    examples = [text for text in examples if text not in held_out]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "documentation.txt").write_text("\n".join(documentation) + "\n", encoding="utf-8")
    (options.out / "dictionary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.out / "examples.txt").write_text("\n".join(examples) + "\n", encoding="utf-8")
    for name, texts in (("documentation", documentation), ("dictionary", lines), ("examples", examples)):
        print(f"{name}: {len(texts)} paragraphs, {sum(map(len, texts))} characters")


def quotes_of(line: str, held_out: set[str]) -> list[str]:
    """The held-out sentences that `line` may quote, found by its sentence ends."""
    pieces = re.split(r"(?<=[.!?]) (?=[A-Z])", line)
    return [piece for piece in pieces if piece in held_out]


if __name__ == "__main__":
    main()
