"""Server-sent events, read strictly: nothing may come before, between or after them."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any


@dataclass
class Stream:
    """A stream taken apart. ``done`` tells whether it ended with the mark that it should."""

    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for event in self.events for choice in event.get("choices", ())]

    @property
    def usage(self) -> dict[str, Any] | None:
        with_usage = [event for event in self.events if event.get("usage") and not event["choices"]]
        assert len(with_usage) <= 1
        return with_usage[0]["usage"] if with_usage else None

    @property
    def error(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.events[-1].get("error") if self.events else None
        return found

    def texts(self) -> dict[int, str]:
        """By choice; of completions or of chat."""
        texts: dict[int, str] = defaultdict(str)
        for choice in self.choices:
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
        return dict(texts)

    def finish_reasons(self) -> dict[int, list[str]]:
        """By choice, all that were sent: exactly one each, in a stream that is right."""
        reasons: dict[int, list[str]] = defaultdict(list)
        for choice in self.choices:
            if choice["finish_reason"] is not None:
                reasons[choice["index"]].append(choice["finish_reason"])
        return dict(reasons)


def parse(body: str) -> Stream:
    stream = Stream()
    *blocks, rest = body.split("\n\n")
    assert rest == "", f"the stream ends in the middle of an event: {rest!r}"
    for block in blocks:
        assert not stream.done, "something came after [DONE]"
        assert block.startswith("data: "), block
        data = block.removeprefix("data: ")
        assert "\n" not in data
        if data == "[DONE]":
            stream.done = True
        else:
            stream.events.append(json.loads(data))
    return stream


def joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))
