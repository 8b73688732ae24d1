"""What an answer must look like: ``response_format``, ``structured_outputs``, and the older ``guided_*``."""

import json
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from plait_engine.request import Grammar, GrammarKind
from plait_server.errors import bad
from plait_server.protocol.body import Body

MAX_GRAMMAR_BYTES = 65_536
MAX_CHOICES = 1_024
ANY_OBJECT = Grammar(GrammarKind.JSON, '{"type": "object"}')


def schema_text(value: Any) -> str | None:
    """A JSON schema as an object, or as a string with one in it."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            raise ValueError("must be a JSON schema; this string is not valid JSON") from None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON schema, as an object")
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        raise ValueError("is nested too deeply") from None
    return bounded(text)


def grammar_text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return bounded(value)


def bounded(text: str) -> str:
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise ValueError(f"must not be longer than {MAX_GRAMMAR_BYTES} bytes")
    return text


def choices(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(choice, str) and choice for choice in value):
        raise ValueError("must be a list of one or more strings, none of them empty")
    if len(value) > MAX_CHOICES:
        raise ValueError(f"at most {MAX_CHOICES} strings are allowed, not {len(value)}")
    bounded("".join(value))
    return tuple(value)


Schema = Annotated[
    str | None,
    PlainValidator(schema_text),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]}),
]
GrammarText = Annotated[
    str | None,
    PlainValidator(grammar_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
]
Choices = Annotated[
    tuple[str, ...] | None,
    PlainValidator(choices),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}, "minItems": 1}, {"type": "null"}]}),
]


class NamedSchema(Body):
    name: str | None = None
    description: str | None = None
    schema_text: Schema = Field(None, alias="schema")
    strict: bool | None = Field(None, description="Answers follow the schema either way.")


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def schema_where_it_belongs(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise bad("response_format", "json_schema goes with type json_schema, and only with it")
        return self

    @property
    def grammar(self) -> Grammar | None:
        if self.type == "text":
            return None
        named = self.json_schema
        if named is None or named.schema_text is None:
            return ANY_OBJECT
        return Grammar(GrammarKind.JSON, named.schema_text)


class StructuredOutputs(Body):
    schema_text: Schema = Field(None, alias="json")
    json_object: bool | None = None
    regex: GrammarText = None
    choice: Choices = None
    grammar: GrammarText = Field(None, description="In Lark's notation.")
    disable_any_whitespace: bool | None = Field(None, description="Of JSON: no space between its tokens.")
    whitespace_pattern: GrammarText = Field(None, description="Of JSON: what may stand between its tokens.")

    @property
    def grammars(self) -> list[Grammar]:
        given = grammars_of(self.schema_text, self.regex, self.choice, self.grammar)
        return [self._spaced(grammar) for grammar in ([*given, ANY_OBJECT] if self.json_object else given)]

    def _spaced(self, grammar: Grammar) -> Grammar:
        """With the white space that the client wants, if it wants any in particular."""
        pattern = "" if self.disable_any_whitespace else self.whitespace_pattern
        if pattern is None or grammar.kind is not GrammarKind.JSON:
            return grammar
        schema = orjson.loads(grammar.text) | {"x-guidance": {"whitespace_pattern": pattern}}
        return Grammar(GrammarKind.JSON, orjson.dumps(schema).decode())


class StructuredFields(Body):
    """At most one of all may say something."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema = None
    guided_regex: GrammarText = None
    guided_choice: Choices = None
    guided_grammar: GrammarText = None

    @model_validator(mode="after")
    def one_grammar(self) -> "StructuredFields":
        if len(self._grammars()) > 1:
            raise bad("structured_outputs", "an answer can follow one grammar only; ask for one")
        if self.structured_outputs is not None and not self.structured_outputs.grammars:
            raise bad("structured_outputs", "give one of json, json_object, regex, choice or grammar")
        return self

    @property
    def grammar(self) -> Grammar | None:
        return next(iter(self._grammars()), None)

    @property
    def grammar_param(self) -> str:
        """What the client called it."""
        if self.response_format is not None and self.response_format.grammar is not None:
            return "response_format"
        names = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        return next((name for name in names if getattr(self, name) is not None), "structured_outputs")

    def _grammars(self) -> list[Grammar]:
        found = grammars_of(self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        if self.structured_outputs is not None:
            found += self.structured_outputs.grammars
        if self.response_format is not None and self.response_format.grammar is not None:
            found.append(self.response_format.grammar)
        return found


def grammars_of(
    schema: str | None, regex: str | None, choice: tuple[str, ...] | None, grammar: str | None
) -> list[Grammar]:
    given = (
        (GrammarKind.JSON, schema),
        (GrammarKind.REGEX, regex),
        (GrammarKind.LARK, None if choice is None else one_of(choice)),
        (GrammarKind.LARK, grammar),
    )
    return [Grammar(kind, text) for kind, text in given if text is not None]


def one_of(choice: tuple[str, ...]) -> str:
    """A string in Lark is written as in JSON."""
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choice)
