"""config.json, dtypes, random weights, generation_config.json, hashes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plait_engine.loader.checkpoint import WeightsError
from plait_engine.loader.generation import Generation, read_generation
from plait_engine.loader.hashes import verify_hashes
from plait_engine.loader.load import checkpoint_dtype, fill_model, read_config
from plait_engine.models.config import ConfigError
from plait_engine.models.registry import build_model
from plait_kernels.select import Kernels
from tests.engine.models.driver import Driver
from tests.golden import SPECS, make_golden

CPU = torch.device("cpu")


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a model folder: it has no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_config_that_is_no_json_object_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "float32"}, torch.float32),
        ({"torch_dtype": "float16"}, torch.float16),
        ({"dtype": "torch.bfloat16"}, torch.bfloat16),
        ({"dtype": "float32", "text_config": {"dtype": "float16"}}, torch.float16),
        ({"dtype": "float16", "text_config": {}}, torch.float16),
        ({}, torch.bfloat16),
    ],
)
def test_the_checkpoints_dtype_is_read(config: dict[str, Any], dtype: torch.dtype) -> None:
    assert checkpoint_dtype(config) == dtype


def test_a_dtype_that_is_not_supported_is_named() -> None:
    with pytest.raises(ConfigError, match="'float8_e4m3fn'; supported: bfloat16, float16, float32"):
        checkpoint_dtype({"dtype": "float8_e4m3fn"})


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_random_weights_give_finite_logits_that_depend_on_the_prompt(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    make_golden(name, tmp_path)

    def logits(seed: int, tokens: list[int]) -> torch.Tensor:
        model = build_model(read_config(tmp_path), dtype=dtype, page_size=4, kernels=Kernels())
        driver = Driver(fill_model(model, None, CPU, seed=seed))
        return driver.run([(driver.sequence(), torch.tensor(tokens))])[0][-1]

    first = logits(0, [5, 6, 7, 8])
    assert first.isfinite().all()
    assert 0.05 < first.std() < 20
    assert torch.equal(first, logits(0, [5, 6, 7, 8]))
    assert not torch.allclose(first, logits(1, [5, 6, 7, 8]), atol=0.01)
    assert not torch.allclose(first, logits(0, [9, 6, 7, 8]), atol=0.001)


def test_end_tokens_of_both_files_count(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3]}))
    config = {"eos_token_id": 3, "text_config": {"eos_token_id": [11, 7]}}
    assert read_generation(tmp_path, config).eos_token_ids == (7, 3, 11)


def test_sampling_values_are_read_where_they_are_given(tmp_path: Path) -> None:
    values = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    (tmp_path / "generation_config.json").write_text(json.dumps(values | {"transformers_version": "5"}))
    expected = Generation((), temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)
    assert read_generation(tmp_path, {}) == expected


def test_a_model_that_is_not_to_sample_is_greedy(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.7}')
    assert read_generation(tmp_path, {}).temperature == 0.0


def test_without_generation_config_only_the_end_tokens_are_known(tmp_path: Path) -> None:
    assert read_generation(tmp_path, {"eos_token_id": 2}) == Generation((2,))


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [true]}', '{"temperature": -1}', '{"top_p": NaN}',
     '{"top_k": "20"}', '{"temperature": Infinity}', '{"eos_token_id": -1}'],
)  # fmt: skip
def test_a_broken_generation_config_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"generation_config\.json|eos_token_id"):
        read_generation(tmp_path, {})


def sums(folder: Path) -> None:
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in folder.iterdir()]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def test_files_that_match_their_hashes_pass(folder: Path) -> None:
    sums(folder)
    assert verify_hashes(folder) >= 2


def test_altered_and_missing_files_are_named(folder: Path) -> None:
    sums(folder)
    (folder / "generation_config.json").unlink()
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x01\x02\x03\x04")
    with pytest.raises(WeightsError, match=r"missing: generation_config\.json; altered: model\.safetensors"):
        verify_hashes(folder)


@pytest.mark.parametrize("content", [None, "only-one-word\n"])
def test_hashes_that_cannot_be_read_are_an_error(folder: Path, content: str | None) -> None:
    if content is not None:
        (folder / "SHA256SUMS").write_text(content)
    with pytest.raises(WeightsError, match="SHA256SUMS cannot be read"):
        verify_hashes(folder)
