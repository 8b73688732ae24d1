"""All that the front end knows of a model: how it reads and writes text, and how it likes to be sampled."""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from plait_engine.request import SamplingParams
from plait_server.reply.plan import ReplyStyle
from plait_server.text.chat_template import ChatTemplate
from plait_server.text.marks import ChatMarks
from plait_server.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """From generation_config.json: used where the client says nothing, as vLLM's users expect."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        SamplingParams(**asdict(self))  # raises ValueError for numbers that cannot be

    @classmethod
    def load(cls, folder: Path) -> "SamplingDefaults":
        path = folder / "generation_config.json"
        given = read_json(path)
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        values = {name: given[name] for name in names if given.get(name) is not None}
        if given.get("do_sample") is False:
            values["temperature"] = 0.0
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """``template`` is None for models without a chat template: they complete, but do not chat."""

    tokenizer: TextTokenizer
    template: ChatTemplate | None = None
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    special_tokens: dict[str, str] = field(default_factory=dict)
    family: str = ""
    """The ``model_type``."""

    @cached_property
    def marks(self) -> ChatMarks | None:
        """Finds where chat prompts are worth a checkpoint."""
        return ChatMarks(self.template, self.tokenizer) if self.template is not None else None

    def reply_style(self, tool_format: str, reasoning_format: str) -> ReplyStyle:
        template = "" if self.template is None else self.template.source
        return ReplyStyle.of(template, self.family, tool_format=tool_format, reasoning_format=reasoning_format)

    @classmethod
    def load(cls, folder: Path) -> "ModelText":
        """Raises ``FileNotFoundError`` or ``ValueError`` naming the file to mend."""
        config = read_json(folder / "tokenizer_config.json")
        special_tokens = special_tokens_of(config)
        source = template_source(folder, config)
        return cls(
            tokenizer=TextTokenizer.load(folder),
            template=ChatTemplate(source, special_tokens) if source is not None else None,
            defaults=SamplingDefaults.load(folder),
            special_tokens=special_tokens,
            family=str(read_json(folder / "config.json").get("model_type", "")),
        )


def read_json(path: Path) -> dict[str, Any]:
    """An empty dict when the file is not there: all of them are optional."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def special_tokens_of(config: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and the like; written as a string, or as an object with the string inside."""
    found = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def template_source(folder: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja wins; else tokenizer_config.json has one template, or several with names."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    given = config.get("chat_template")
    if isinstance(given, list):
        named = {entry["name"]: entry["template"] for entry in given}
        given = named.get("default")
    return given if isinstance(given, str) else None
