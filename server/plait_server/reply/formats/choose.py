"""Which format a model writes: what its template shows, else what its family does."""

from collections.abc import Mapping

from plait_server.reply.formats.base import ToolFormat
from plait_server.reply.formats.gemma import Gemma, Gemma4
from plait_server.reply.formats.json_calls import Granite, Hermes
from plait_server.reply.formats.lfm2 import Lfm2
from plait_server.reply.formats.qwen_xml import QwenXml

FORMATS: Mapping[str, type[ToolFormat]] = {
    "hermes": Hermes,
    "qwen_xml": QwenXml,
    "granite": Granite,
    "lfm2": Lfm2,
    "gemma": Gemma,
    "gemma4": Gemma4,
}
SIGNS = (
    (Gemma.opener, "gemma"),
    (Gemma4.opener, "gemma4"),
    ("<|tool_list_start|>", "lfm2"),
    (Lfm2.opener, "lfm2"),
    ("<function=", "qwen_xml"),
    (Granite.opener, "granite"),
    (Hermes.opener, "hermes"),
)
"""What templates hold, the more telling first."""
FAMILIES = (("lfm2", "lfm2"), ("qwen3_5", "qwen_xml"), ("gemma4", "gemma4"), ("gemma", "gemma"))
"""Beginnings of ``model_type``."""


def format_name(template: str, family: str) -> str:
    """A name in ``FORMATS``."""
    for sign, name in SIGNS:
        if sign in template:
            return name
    return next((name for start, name in FAMILIES if family.startswith(start)), "hermes")
