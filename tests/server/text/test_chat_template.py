"""Chat templates render as transformers renders them."""

from typing import Any

import pytest

from plait_server.text.chat_template import RESERVED, ChatTemplate, TemplateFailed

USER = {"role": "user", "content": "hi"}
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
)
PARTS = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages or [USER], **options)


def test_blocks_leave_no_lines_behind() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_special_tokens_are_known() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}") == "<s>hi"


def test_loops_can_break_and_continue() -> None:
    loop = "{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
    source = "{% for i in range(9) %}" + loop + "{% endfor %}"
    assert render(source) == "02"


def test_json_is_neither_escaped_for_html_nor_reduced_to_ascii() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_marks_of_training_are_tolerated() -> None:
    assert render("a{% generation %}b{{ bos_token }}{% endgeneration %}c") == "ab<s>c"


def test_a_template_may_refuse_messages_and_its_reason_is_kept() -> None:
    with pytest.raises(TemplateFailed, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_template_knows_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


@pytest.mark.parametrize(
    "source", ["{{ 1 / 0 }}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ x.y }}"]
)
def test_whatever_goes_wrong_in_a_template_is_a_failure_of_the_template(source: str) -> None:
    with pytest.raises(TemplateFailed):
        render(source)


def test_a_template_that_cannot_be_compiled_says_where() -> None:
    with pytest.raises(ValueError, match=r"chat template is wrong in line 2: .*end of template"):
        ChatTemplate("{{ messages }}\n{% for x in")


def test_extra_variables_reach_the_template_and_reserved_ones_are_known() -> None:
    assert render("{{ enable_thinking }}", kwargs={"enable_thinking": False}) == "False"
    assert {"messages", "tokenize", "chat_template"} <= RESERVED


def test_it_is_found_out_whether_a_template_walks_over_parts() -> None:
    assert not ChatTemplate(PLAIN).wants_parts
    assert ChatTemplate(PARTS).wants_parts
    assert not ChatTemplate("{% for m in messages %}{{ m.content | trim }}{% endfor %}").wants_parts


@pytest.mark.parametrize("source", [PLAIN, PLAIN.replace("m.content", "m.content | trim")])
def test_the_final_message_is_left_open_when_it_is_to_be_continued(source: str) -> None:
    messages = [USER, {"role": "assistant", "content": "Once upon "}]
    expected = "[user]hi\n[assistant]Once upon" + (" " if "trim" not in source else "")
    assert render(source, messages, add_generation_prompt=False, continue_final_message=True) == expected


def test_parts_of_a_final_message_are_left_open_too() -> None:
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render(PARTS, messages, continue_final_message=True) == "(a)(b"


def test_a_template_that_drops_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(TemplateFailed, match="drops the final message"):
        render("{{ messages[0].content }}", [USER, {"role": "assistant", "content": "x"}], continue_final_message=True)


def test_messages_given_to_a_template_are_not_changed() -> None:
    message = {"role": "assistant", "content": "x"}
    render(PLAIN, [message], continue_final_message=True)
    assert message == {"role": "assistant", "content": "x"}


def test_rendering_agrees_with_transformers() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "system", "content": "Be <brief>."}, USER, {"role": "assistant", "content": " ok "}, USER]
    source = PLAIN + "\n  {%- for m in messages %}\n    {% if loop.last %}{{ m | tojson }}{% endif %}\n  {% endfor %}\n"
    for prompt in (True, False):
        theirs, _ = render_jinja_template(
            conversations=[messages], chat_template=source, add_generation_prompt=prompt, bos_token="<s>"
        )
        assert render(source, messages, add_generation_prompt=prompt) == theirs[0]
