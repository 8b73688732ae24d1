"""What is read from a model folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from plait_server.text.model_text import ModelText, SamplingDefaults
from tests.server.tiny_text import byte_level_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def prompt_of(folder: Path) -> str | None:
    template = ModelText.load(folder).template
    return None if template is None else template.render([{"role": "user", "content": "hi"}])


def test_a_folder_with_a_tokenizer_alone_completes_but_does_not_chat(folder: Path) -> None:
    text = ModelText.load(folder)
    assert text.template is None
    assert text.defaults == SamplingDefaults()


def test_the_template_file_wins_over_the_configuration(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": "config"})
    assert prompt_of(folder) == "config"
    write(folder, "chat_template.jinja", "file")
    assert prompt_of(folder) == "file"


def test_of_several_named_templates_the_default_is_used(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert prompt_of(folder) == "plain"


def test_special_tokens_may_be_written_as_objects(folder: Path) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    write(folder, "tokenizer_config.json", config | {"chat_template": "{{ bos_token }}{{ eos_token }}"})
    assert prompt_of(folder) == "<s></s>"
    assert ModelText.load(folder).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_sampling_defaults_come_from_the_generation_config(folder: Path) -> None:
    given = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "max_new_tokens": 5}
    write(folder, "generation_config.json", given)
    expected = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1)
    assert ModelText.load(folder).defaults == expected


def test_a_model_that_asks_for_no_sampling_is_greedy(folder: Path) -> None:
    write(folder, "generation_config.json", {"do_sample": False, "temperature": 0.7})
    assert ModelText.load(folder).defaults.temperature == 0.0


@pytest.mark.parametrize("content", ["{", "[]", '{"top_p": 7}', '{"temperature": "hot"}'])
def test_a_broken_generation_config_is_named(folder: Path, content: str) -> None:
    write(folder, "generation_config.json", content)
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        ModelText.load(folder)
