"""Loading is strict: every parameter once, every tensor used, or an error that lists what is wrong (CASES 48)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plait_engine.loader.checkpoint import WeightsError
from plait_engine.loader.weights import load_weights
from plait_engine.models.base import Model
from plait_engine.models.targets import Target
from tests.golden import Golden

Build = Callable[..., Model]
Tensors = dict[str, Tensor]
Edit = Callable[[Path, Callable[[Tensors], object]], None]

NORM = "model.layers.0.input_layernorm.weight"
EMBEDDING = "model.embed_tokens.weight"


def shard(folder: Path, parts: int = 3) -> dict[str, str]:
    """Split the one file into several with an index; the index's map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {name: f"model-{i % parts + 1:05d}-of-{parts:05d}.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return files


def refusal(model: Model, folder: Path) -> str:
    with pytest.raises(WeightsError) as refused:
        load_weights(model, folder)
    return str(refused.value)


def test_every_parameter_is_filled_from_one_file(folder: Path, new_model: Build) -> None:
    model = new_model(folder)
    load_weights(model, folder)
    assert all(p.isfinite().all() for p in model.parameters())


def test_shards_hold_the_same_as_one_file(folder: Path, new_model: Build) -> None:
    whole, parts = new_model(folder), new_model(folder)
    load_weights(whole, folder)
    shard(folder)
    load_weights(parts, folder)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_every_tensor_is_stored_exactly_once(folder: Path, new_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(folder)
    stored: list[str] = []
    targets = model.targets

    def recording(present: frozenset[str]) -> list[Target]:
        return [
            Target(t.name, t.shape, lambda tensor, t=t: (stored.append(t.name), t.store(tensor)))
            for t in targets(present)
        ]

    monkeypatch.setattr(model, "targets", recording)
    load_weights(model, folder)
    assert sorted(stored) == sorted(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_are_converted(
    folder: Path, new_model: Build, edit: Edit, stored: torch.dtype, wanted: torch.dtype
) -> None:
    def convert(tensors: Tensors) -> None:
        tensors.update({name: t.to(stored) for name, t in tensors.items()})

    edit(folder, convert)
    model = new_model(folder, wanted)
    load_weights(model, folder)
    expected = load_file(folder / "model.safetensors")[EMBEDDING].to(wanted)
    assert torch.equal(dict(model.named_parameters())["embed_tokens.weight"], expected)


def test_a_renamed_tensor_is_both_missing_and_unexpected(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({"model.layers.0.norm1.weight": tensors.pop(NORM)}))
    message = refusal(new_model(folder), folder)
    assert f"missing (1): {NORM}" in message
    assert "unexpected (1): model.layers.0.norm1.weight" in message


def test_an_extra_tensor_is_named(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({"model.layers.0.extra": torch.zeros(1)}))
    message = refusal(new_model(folder), folder)
    assert "unexpected (1): model.layers.0.extra" in message
    assert "missing" not in message


@pytest.mark.parametrize("name", ["mtp.fc.weight", "model.visual.x", "vision_tower.x", "model.layers.4.x"])
def test_only_what_the_architecture_lists_is_skipped(folder: Path, new_model: Build, edit: Edit, name: str) -> None:
    edit(folder, lambda tensors: tensors.update({name: torch.zeros(1)}))
    assert f"unexpected (1): {name}" in refusal(new_model(folder), folder)


def test_one_part_of_a_fused_matrix_cannot_be_missing(folder: Path, new_model: Build, edit: Edit) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    edit(folder, lambda tensors: tensors.pop(name))
    assert f"missing (1): {name}" in refusal(new_model(folder), folder)


def test_a_long_list_of_names_is_cut(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({f"extra.{i:03d}": torch.zeros(1) for i in range(500)}))
    message = refusal(new_model(folder), folder)
    assert "unexpected (500): extra.000, " in message
    assert "and 488 more" in message
    assert len(message) < 1000


def test_nothing_is_loaded_when_anything_is_wrong(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.pop(NORM))
    model = new_model(folder)
    refusal(model, folder)
    assert all(p.isnan().all() for p in model.parameters())


def test_a_wrong_shape_is_named_with_both_shapes(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({NORM: torch.ones(63)}))
    assert f"of wrong shape or dtype (1): {NORM} is [63], not [64]" in refusal(new_model(folder), folder)


def test_a_dtype_that_is_not_a_float_is_named(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({NORM: torch.ones(64, dtype=torch.int8)}))
    assert f"{NORM} is I8, not one of BF16, F16, F32" in refusal(new_model(folder), folder)


def test_an_untied_head_that_is_missing_is_an_error(untied: Golden, folder: Path, new_model: Build) -> None:
    (folder / "config.json").write_text((untied.folder / "config.json").read_text())
    assert "missing (1): lm_head.weight" in refusal(new_model(folder), folder)


def test_an_untied_head_is_loaded(untied: Golden, new_model: Build) -> None:
    model = new_model(untied.folder)
    load_weights(model, untied.folder)
    head = load_file(untied.folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(dict(model.named_parameters())["lm_head.weight"], head)


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDING].clone()}))
    load_weights(new_model(folder), folder)


def test_a_tied_head_that_differs_from_the_embedding_is_an_error(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDING] + 1}))
    assert "lm_head.weight" in refusal(new_model(folder), folder)


def test_a_tied_head_of_another_shape_is_an_error(folder: Path, new_model: Build, edit: Edit) -> None:
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(8, 64)}))
    assert "lm_head.weight is [8, 64], not [256, 64]" in refusal(new_model(folder), folder)


def test_a_truncated_file_is_named(folder: Path, new_model: Build) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert f"{path} cannot be read as safetensors (truncated download?)" in refusal(new_model(folder), folder)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 not safetensors", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_a_file_of_another_format_is_named(folder: Path, new_model: Build, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors cannot be read as safetensors" in refusal(new_model(folder), folder)


def test_a_folder_without_weights_is_named(folder: Path, new_model: Build) -> None:
    (folder / "model.safetensors").unlink()
    assert f"no weights in {folder}" in refusal(new_model(folder), folder)


def test_a_missing_shard_is_named(folder: Path, new_model: Build) -> None:
    files = shard(folder)
    (folder / files[NORM]).unlink()
    assert f"names files that are not there: {files[NORM]}" in refusal(new_model(folder), folder)


def test_a_tensor_in_two_shards_is_named(folder: Path, new_model: Build) -> None:
    files = shard(folder)
    other = next(file for file in files.values() if file != files[NORM])
    tensors = load_file(folder / other) | {NORM: torch.zeros(64)}
    save_file(tensors, folder / other)
    assert f"in more than one file: {NORM}" in refusal(new_model(folder), folder)


def test_an_index_that_does_not_match_its_shards_is_named(folder: Path, new_model: Build) -> None:
    files = shard(folder)
    moved = {name: file for name, file in files.items() if name != NORM} | {"ghost.weight": files[NORM]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": moved}))
    message = refusal(new_model(folder), folder)
    assert "named in the index but in no file: ghost.weight" in message
    assert f"in a file but not in the index: {NORM}" in message


@pytest.mark.parametrize(
    "index", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../../elsewhere.safetensors"}}']
)
def test_a_broken_index_is_named(folder: Path, new_model: Build, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json is not a safetensors index" in refusal(new_model(folder), folder)


def test_progress_ends_at_the_bytes_of_all_tensors(folder: Path, new_model: Build) -> None:
    shard(folder)
    reports: list[tuple[int, int]] = []
    load_weights(new_model(folder), folder, lambda done, total: reports.append((done, total)))
    total = sum(t.nbytes for file in folder.glob("*.safetensors") for t in load_file(file).values())
    assert reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
