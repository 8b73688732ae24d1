"""Where a prompt is worth a checkpoint: what its template shows, what its parts say, and what the client asks for."""

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

from plait_server.errors import bad
from plait_server.front import FrontEnd
from plait_server.prepare import template_messages
from plait_server.protocol.chat import TemplateFields
from plait_server.protocol.extensions import Extensions
from plait_server.protocol.messages import Message
from plait_server.text.chat_template import TemplateFailed

BREAKPOINT = "prompt_cache_breakpoint"
MAX_BREAKPOINTS = 4
"""The last ones count: each costs as much as tokenizing the prompt up to it."""
END_OF_PART = "\ue000part-%d\ue000"
ANY_END = re.compile("\ue000part-[0-9]+\ue000")


async def chat_checkpoints(
    front: FrontEnd, body: TemplateFields, asked: Extensions | None, text: str, ids: Sequence[int], **kwargs: object
) -> tuple[int, ...]:
    """Positions in ``ids``, the tokens of ``text``, into which the template has made the messages."""
    marks = [*template_marks(front, body, text, ids, **kwargs), *await breakpoints(front, body, text, ids, **kwargs)]
    return with_asked(marks, asked, ids)


def asked_checkpoints(asked: Extensions | None, prompts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The client's own; with several prompts, the same in each."""
    return with_asked((), asked, min(prompts, key=len))


def with_asked(marks: Iterable[int], asked: Extensions | None, ids: Sequence[int]) -> tuple[int, ...]:
    wanted = asked.checkpoint if asked else ()
    if wanted and wanted[-1] >= len(ids):
        message = f"{wanted[-1]} is not inside the prompt of {len(ids)} tokens; give positions from 1 to {len(ids) - 1}"
        raise bad("plait.checkpoint", message)
    found = {mark for mark in marks if 0 < mark < len(ids)}
    if wanted and not found:
        found.add(len(ids) - 1)  # Where the engine would leave one by itself, were nothing asked.
    return tuple(sorted(found | set(wanted)))


def template_marks(
    front: FrontEnd, body: TemplateFields, text: str, ids: Sequence[int], **kwargs: object
) -> tuple[int, ...]:
    """Nothing when the last message is to be continued."""
    template, marks = front.text.template, front.text.marks
    if template is None or marks is None or not body.opens_reply:
        return ()
    return marks.of(template_messages(template, body), kwargs, text, ids)


async def breakpoints(
    front: FrontEnd, body: TemplateFields, text: str, ids: Sequence[int], **kwargs: object
) -> list[int]:
    """Ends of the parts that carry ``prompt_cache_breakpoint``. Where the template leaves no trace of one, nothing."""
    places = []
    for prefix in prefixes(front, body, text, **kwargs):
        special = bool(body.add_special_tokens)
        tokens = await front.text.tokenizer.encode_soon(prefix, add_special_tokens=special)
        # The last token may be another one when the text goes on; what is the same in both is safe.
        same = takewhile(lambda pair: pair[0] == pair[1], zip(tokens, ids, strict=False))
        places.append(sum(1 for _ in same))
    return places


def prefixes(front: FrontEnd, body: TemplateFields, text: str, **kwargs: object) -> list[str]:
    """The text up to the end of each such part, found by rendering the messages with marks in them."""
    template = front.text.template
    messages, count = with_ends(body.messages)
    if template is None or not count:
        return []
    try:
        rendered = template.render(
            [message.for_template(parts=template.wants_parts) for message in messages],
            add_generation_prompt=body.opens_reply,
            continue_final_message=bool(body.continue_final_message),
            kwargs=kwargs,
        )
    except TemplateFailed:
        return []
    found = []
    for number in range(max(0, count - MAX_BREAKPOINTS), count):
        before, mark, _ = rendered.partition(END_OF_PART % number)
        prefix = ANY_END.sub("", before)
        if mark and text.startswith(prefix.rstrip()):
            found.append(prefix if text.startswith(prefix) else prefix.rstrip())
    return found


def with_ends(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """The messages with a mark behind each part that is to end with a checkpoint, and how many those are."""
    marked, count = [], 0
    for message in messages:
        if isinstance(message.content, list) and any(part.get(BREAKPOINT) for part in message.content):
            parts = []
            for part in message.content:
                if part.get(BREAKPOINT):
                    part = {**part, "text": part["text"] + END_OF_PART % count}
                    count += 1
                parts.append(part)
            message = message.model_copy(update={"content": parts})
        marked.append(message)
    return marked, count
