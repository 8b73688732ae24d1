"""Chat templates that do what those of the supported families do with a conversation, in our own words.

Written from how their models expect a conversation: who opens and closes a turn and how, where tools go, what becomes
of reasoning in history, and what is refused.
"""

GRANITE4 = """
{%- macro turn(role, content) -%}
{{ '<|start_of_role|>' + role + '<|end_of_role|>' + content + '<|end_of_text|>\n' }}
{%- endmacro %}
{%- set listed = tools | default(none) %}
{%- if listed %}
{%- set about = 'You can call these tools, inside <tools></tools>:\n<tools>' %}
{%- set ns = namespace(text=about) %}
{%- for tool in listed %}{% set ns.text = ns.text + '\n' + tool | tojson %}{% endfor %}
{%- set ns.text = ns.text + '\n</tools>\nAnswer a call with <tool_call></tool_call>.' %}
{%- if messages[0].role == 'system' %}{{ turn('system', messages[0].content + '\n\n' + ns.text) }}
{%- else %}{{ turn('system', ns.text) }}{% endif %}
{%- elif messages[0].role == 'system' %}{{ turn('system', messages[0].content) }}
{%- else %}{{ turn('system', 'You are a helpful assistant. Answers are professional, accurate and safe.') }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{ turn(m.role, m.content) }}
{%- elif m.role == 'assistant' %}
{%- set ns2 = namespace(text=m.content or '') %}
{%- for call in m.tool_calls or [] %}
{%- set ns2.text = ns2.text + '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' %}
{%- endfor %}
{{- turn('assistant', ns2.text) }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|start_of_role|>user<|end_of_role|>' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|end_of_text|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}
"""

_QWEN_LAST = """
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for m in messages[::-1] %}
{%- if ns.searching and m.role == 'user' and not m.content.startswith('<tool_response>') %}
{%- set ns.searching = false %}{% set ns.last = messages | length - 1 - loop.index0 %}
{%- endif %}
{%- endfor %}
"""
_QWEN_HEAD = """
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
{{- '# Tools\n\nYou may call these, in <tools></tools>:\n<tools>' }}
{%- for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}
{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
"""
_QWEN_TURNS = """
{%- for m in messages %}
{%- set content = m.content if m.content is string else '' %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}
{%- set thought = m.reasoning_content if m.reasoning_content is string else '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{ content }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
"""
QWEN3 = (
    _QWEN_LAST
    + _QWEN_HEAD
    + _QWEN_TURNS
    + """
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}
"""
)
"""Reasoning of earlier turns is dropped, that of the turn under way is kept."""
QWEN3_NEXT_THINKING = (
    _QWEN_LAST
    + _QWEN_HEAD
    + _QWEN_TURNS
    + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""The opener begins the reasoning."""
QWEN3_5 = (
    """
{%- if not messages %}{{ raise_exception('no messages') }}{% endif %}
"""
    + _QWEN_LAST
    + "{%- if ns.searching %}{{ raise_exception('nobody asks anything') }}{% endif %}"
    + _QWEN_HEAD
    + _QWEN_TURNS
    + """
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}
{%- else %}{{ '<think>\n' }}{% endif %}{% endif %}
"""
)
"""Takes no conversation without a question."""

GEMMA3 = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
{%- set first = messages[0].content + '\n\n' %}{% set turns = messages[1:] %}
{%- else %}{% set first = '' %}{% set turns = messages %}
{%- endif %}
{%- for m in turns %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('it is not their turn') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}
{{- m.content | trim }}
{{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}
"""
"""No role for the system: its prompt stands in the first question."""

LFM2 = """
{{- bos_token }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{%- if tools %}
{%- set ns = namespace(text=(system + '\n' if system else '') + 'List of tools: <|tool_list_start|>[') %}
{%- for tool in tools %}{% set ns.text = ns.text + tool | tojson + (', ' if not loop.last else '') %}{% endfor %}
{%- set system = ns.text + ']<|tool_list_end|>' %}
{%- endif %}
{%- if system %}{{ '<|im_start|>system\n' + system + '<|im_end|>\n' }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in turns %}{% if m.role == 'assistant' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in turns %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- set content = m.content %}
{%- if m.role == 'assistant' and loop.index0 != ns.last and '</think>' in content %}
{%- set content = content.split('</think>')[-1] | trim %}
{%- endif %}
{%- if m.role == 'tool' %}{{ '<|tool_response_start|>' + content + '<|tool_response_end|>' }}
{%- else %}{{ content }}{% endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
"""Reasoning is dropped from all replies but the last one."""

CLOSED_LATE = """
{%- for m in messages %}
{{- '[' + m.role + ']' + m.content }}
{%- if not loop.last %}{{ '[/]' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[/][assistant]' }}{% endif %}
"""
"""No family's, but templates like it exist: without an opener the last turn is left open."""
FAMILIES = {
    "granite4": GRANITE4,
    "qwen3": QWEN3,
    "qwen3_next_thinking": QWEN3_NEXT_THINKING,
    "qwen3_5": QWEN3_5,
    "gemma3": GEMMA3,
    "lfm2": LFM2,
    "closed_late": CLOSED_LATE,
}
SPECIAL_TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
MARKS_OF_TURNS = [
    "<|begin|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|end_of_text|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<think>",
    "</think>",
]
