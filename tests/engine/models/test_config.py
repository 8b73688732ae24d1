"""config.json is read strictly: what is missing, of the wrong type or not supported is named."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from plait_engine.layer_plan import LayerPlanError
from plait_engine.loader.load import read_config
from plait_engine.models import gemma3_text
from plait_engine.models.base import Model
from plait_engine.models.config import ConfigError
from plait_engine.models.registry import build_model
from plait_kernels.select import Kernels
from tests.golden import SPECS, Golden, quiet

IRRELEVANT = {
    "architectures", "attention_dropout", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id",
    "initializer_range", "mamba_chunk_size", "output_router_logits", "pad_token_id", "router_aux_loss_coef",
    "transformers_version", "use_cache", "base_model_pp_plan", "base_model_tp_plan",
}  # fmt: skip


def build(config: dict[str, Any], **options: Any) -> Model:
    return build_model(config, dtype=torch.float32, page_size=4, kernels=Kernels(), **options)


@pytest.fixture(params=SPECS)
def config(request: pytest.FixtureRequest, goldens: Callable[[str], Golden]) -> dict[str, Any]:
    return read_config(goldens(request.param).folder)


@pytest.mark.parametrize("value", ["absent", None, "nonsense", -1, [], True, {}, 1e400])
def test_no_value_of_any_key_is_an_unnamed_error(config: dict[str, Any], value: object) -> None:
    """It is built, or refused with a named error; never a KeyError or TypeError."""
    inner = config.get("text_config", config)
    for key in sorted(inner.keys() - IRRELEVANT):
        altered = {k: v for k, v in inner.items() if k != key} | ({} if value == "absent" else {key: value})
        whole = config | {"text_config": altered} if "text_config" in config else altered
        with contextlib.suppress(ConfigError, LayerPlanError):
            build(whole)


def test_a_key_that_is_needed_is_named_when_it_is_missing(config: dict[str, Any]) -> None:
    inner = config.get("text_config", config)
    needed = 0
    for key in sorted(inner.keys() - IRRELEVANT - {"model_type"}):
        altered = {k: v for k, v in inner.items() if k != key}
        whole = config | {"text_config": altered} if "text_config" in config else altered
        message = _refusal(whole)
        needed += message is not None
        assert message is None or key in message
    assert needed >= (4 if inner["model_type"] == "gemma3_text" else 10)  # Gemma's files leave out what has a default


def _refusal(config: dict[str, Any]) -> str | None:
    try:
        build(config)
    except (ConfigError, LayerPlanError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("granite_dense", "hidden_size"),
        ("granite_dense", "mamba_d_state"),
        ("granite_dense", "logits_scaling"),
        ("granite_moe", "num_experts_per_tok"),
        ("granite_dense", "tie_word_embeddings"),
        ("qwen3_5", "linear_num_key_heads"),
        ("qwen3_5", "head_dim"),
        ("qwen3_5_moe", "moe_intermediate_size"),
        ("qwen3_next", "vocab_size"),
        ("gemma3", "intermediate_size"),
        ("gemma3", "sliding_window"),
        ("lfm2", "conv_L_cache"),
    ],
)
def test_a_missing_key_is_named(goldens: Callable[[str], Golden], name: str, key: str) -> None:
    config = read_config(goldens(name).folder)
    del config[key]
    with pytest.raises(ConfigError, match=rf"{config['model_type']} model: {key} is missing"):
        build(config)


PUBLISHED: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
"""What a published multimodal Gemma 3 says of its language model."""


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("left_out", [*PUBLISHED, None])
def test_gemma_without_what_is_as_in_transformers_is_read_as_transformers_reads_it(
    wrapped: bool, left_out: str | None
) -> None:
    published = {key: value for key, value in PUBLISHED.items() if key != left_out}
    with quiet():
        from transformers import Gemma3TextConfig

        complete = Gemma3TextConfig(**published).to_dict()
    config = {"model_type": "gemma3", "text_config": published} if wrapped else published
    if left_out in (None, "model_type", "rope_scaling"):
        assert gemma3_text.Config.parse(config) == gemma3_text.Config.parse(complete)
    else:  # no published file leaves it out, so it is not guessed
        with pytest.raises((ConfigError, LayerPlanError), match=left_out):
            gemma3_text.Config.parse(config)


def test_a_default_gives_way_to_what_the_file_says() -> None:
    pattern = gemma3_text.Config.parse(PUBLISHED | {"sliding_window_pattern": 2, "rope_theta": 5e5, "head_dim": 128})
    assert pattern.kinds == ("sliding_attention", "full_attention") * 17
    assert pattern.rotary["full_attention"].theta == 5e5
    assert pattern.attention["full_attention"].head_dim == 128
    listed = gemma3_text.Config.parse(PUBLISHED | {"layer_types": ["full_attention"] * 34})
    assert set(listed.kinds) == {"full_attention"}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("granite_dense", {"hidden_act": "gelu"}),
        ("granite_dense", {"position_embedding_type": "alibi"}),
        ("granite_rope", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
        ("gemma3", {"use_bidirectional_attention": True}),
        ("qwen3_5", {"attn_output_gate": False}),
    ],
)
def test_what_is_not_implemented_is_refused(
    goldens: Callable[[str], Golden], name: str, change: dict[str, Any]
) -> None:
    config = read_config(goldens(name).folder) | change
    with pytest.raises(ConfigError, match="supported"):
        build(config)


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'t5' is not supported; supported: granitemoehybrid, .*lfm2"):
        build({"model_type": "t5"})


def test_a_nested_language_model_without_a_type_is_known_by_its_wrapper(goldens: Callable[[str], Golden]) -> None:
    config = read_config(goldens("qwen3_5_nested").folder)
    del config["text_config"]["model_type"]
    assert type(build(config)).__name__ == "Qwen3_5Text"


def test_a_length_beyond_what_the_model_allows_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"5000 is beyond max_position_embeddings in config\.json, 4096"):
        build(config, max_positions=5000)


def test_a_shorter_length_saves_the_memory_of_the_rotary_table(goldens: Callable[[str], Golden]) -> None:
    config = read_config(goldens("lfm2").folder)
    whole, short = build(config), build(config, max_positions=96)
    assert (whole.max_positions, short.max_positions) == (4096, 96)
    assert whole.weights_bytes - short.weights_bytes == (4096 - 96) * 16 * 4
