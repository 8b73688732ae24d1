"""A small byte-level tokenizer and chat template, made in a moment."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PROSE = """The quick brown fox jumps over the lazy dog. A weaver plaits three strands into one braid: stop, go on, stop.
Müde Füße, naïve façade, 日本語のテキスト, emoji 🙂🙃👩‍👩‍👧. Numbers 0123456789 and code: def f(x): return x + 1
"""
TEMPLATE = """{%- for message in messages -%}
<|start|>{{ message['role'] }}<|mid|>{{ message['content'] }}<|end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant<|mid|>{%- endif -%}"""
SPECIAL = ["<|end|>", "<|start|>", "<|mid|>"]

SPECIAL_TOKENS = {"bos_token": "<|start|>", "eos_token": "<|end|>"}


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE of 512 tokens; ``<|end|>`` is id 0, and nothing is added around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROSE] * 4, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
