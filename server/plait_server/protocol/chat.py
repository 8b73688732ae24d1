"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from plait_server.errors import bad
from plait_server.protocol import unsupported
from plait_server.protocol.body import Body
from plait_server.protocol.common import Count, GenerationBody, Logprobs
from plait_server.protocol.messages import Messages
from plait_server.protocol.tools import Choice, ToolChoice, ToolList, tool_of
from plait_server.reply.formats.base import Tool
from plait_server.text.chat_template import RESERVED


def no_reserved_names(kwargs: dict[str, Any]) -> dict[str, Any]:
    if clash := sorted(RESERVED & kwargs.keys()):
        raise ValueError(f"must not carry {', '.join(clash)}")
    return kwargs


class TemplateFields(Body):
    """What decides how messages become a prompt."""

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = Field(
        None, description="Templates write special tokens themselves: default false."
    )
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(no_reserved_names)] | None = None
    tools: ToolList = Field(default_factory=list)

    @model_validator(mode="after")
    def prompt_ends_in_one_way(self) -> "TemplateFields":
        if self.continue_final_message and self.add_generation_prompt:
            raise bad("continue_final_message", "excludes add_generation_prompt")
        return self

    @property
    def opens_reply(self) -> bool:
        """Whether the prompt ends with the assistant's opener."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """What the template gets beside the messages."""
        tools = {"tools": self.tools} if self.tools else {}
        return tools | (self.chat_template_kwargs or {})


class ChatBody(GenerationBody, TemplateFields):
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    reasoning_effort: str | None = Field(None, max_length=32, description="Given to the chat template.")
    tool_choice: Choice = None
    parallel_tool_calls: bool | None = Field(None, description="Whether one answer may call several tools.")
    verbosity: str | None = None
    prediction: dict[str, Any] | None = Field(None, description="Accepted, without effect: it changes no answer.")

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, data: Any) -> Any:
        return unsupported.without(data, unsupported.CHAT)

    @model_validator(mode="after")
    def chat_fields_fit_together(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise bad("top_logprobs", "needs logprobs: true")
        if self.token_limit == 0:
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            raise bad(name, "must be at least 1")
        return self

    @model_validator(mode="after")
    def tools_that_are_chosen_exist(self) -> "ChatBody":
        choice = self.tool_choice
        if choice is None:
            return self
        if choice.mode == "required" and not self.tools:
            raise bad("tool_choice", "needs tools")
        known = {tool["function"]["name"] for tool in self.tools}
        if unknown := next((name for name in choice.names or () if name not in known), None):
            raise bad("tool_choice", f"there is no tool {unknown[:100]!r} in tools")
        if choice.mode == "required" and self.grammar is not None and self.grammar_param != "response_format":
            raise bad("tool_choice", f"an answer cannot follow {self.grammar_param} and call a tool; ask for one")
        return self

    @property
    def callable_tools(self) -> dict[str, Tool]:
        choice = self.tool_choice or ToolChoice("auto")
        if choice.mode == "none":
            return {}
        tools = map(tool_of, self.tools)
        return {tool.name: tool for tool in tools if choice.names is None or tool.name in choice.names}

    @property
    def must_call(self) -> bool:
        return self.tool_choice is not None and self.tool_choice.mode == "required"

    @property
    def may_call_several(self) -> bool:
        return self.parallel_tool_calls is not False and not (self.tool_choice and self.tool_choice.one)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def template_kwargs(self) -> dict[str, Any]:
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return effort | super().template_kwargs
