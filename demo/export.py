"""From a training model to a Hugging Face folder, and parts of a file for narrow channels.

The layout and the names are those of `GraniteMoeHybridForCausalLM` in transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from demo.model import ATTENTION, Attention, Mamba, Model, ModelConfig
from demo.tokenizer import END_OF_TEXT_ID, PAD_ID, TURN_END_ID

PART_BYTES: Final = 15 * 2**20


def hugging_face_config(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The content of `config.json`."""
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp,
        "shared_intermediate_size": config.mlp,
        "num_hidden_layers": len(config.layers),
        "layer_types": list(config.layers),
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.attention_heads,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "nope",
        "max_position_embeddings": config.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_multiplier": config.attention_multiplier,
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "mamba_n_heads": config.mamba_heads,
        "mamba_d_head": config.head,
        "mamba_d_state": config.state,
        "mamba_d_conv": config.conv,
        "mamba_expand": config.inner // config.hidden,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 64,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": TURN_END_ID,
        "pad_token_id": PAD_ID,
    }


def hugging_face_tensors(model: Model) -> dict[str, Tensor]:
    """Name -> fp32 tensor. The head is tied, so it is not there."""
    tensors: dict[str, Tensor] = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm.weight}
    for index, layer in enumerate(model.typed_layers()):
        prefix = f"model.layers.{index}"
        mixer, mlp = layer.mixer, layer.mlp
        tensors[f"{prefix}.input_layernorm.weight"] = layer.norm_mixer.weight
        tensors[f"{prefix}.post_attention_layernorm.weight"] = layer.norm_mlp.weight
        tensors[f"{prefix}.shared_mlp.input_linear.weight"] = torch.cat([mlp.gate, mlp.up])
        tensors[f"{prefix}.shared_mlp.output_linear.weight"] = mlp.down
        if isinstance(mixer, Mamba):
            tensors |= {f"{prefix}.mamba.{name}": tensor for name, tensor in mamba_tensors(mixer).items()}
        elif isinstance(mixer, Attention):
            for name in ("q", "k", "v"):
                tensors[f"{prefix}.self_attn.{name}_proj.weight"] = getattr(mixer, name)
            tensors[f"{prefix}.self_attn.o_proj.weight"] = mixer.out
    return {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}


def mamba_tensors(mixer: Mamba) -> dict[str, Tensor]:
    """The tensors of one Mamba layer; the input projection is [gate, x, B, C, dt] from top to bottom."""
    return {
        "in_proj.weight": torch.cat([mixer.gate, mixer.x, mixer.b, mixer.c, mixer.dt]),
        "conv1d.weight": mixer.conv_weight.unsqueeze(1),
        "conv1d.bias": mixer.conv_bias,
        "dt_bias": mixer.dt_bias,
        "A_log": mixer.a_log,
        "D": mixer.d,
        "norm.weight": mixer.norm,
        "out_proj.weight": mixer.out,
    }


def export(model: Model, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json, generation_config.json and model.safetensors; the tokenizer is the caller's business."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(dtype) for name, tensor in hugging_face_tensors(model).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", hugging_face_config(model.config, dtype))
    generation = {
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": [TURN_END_ID, END_OF_TEXT_ID],
        "pad_token_id": PAD_ID,
        "do_sample": False,
    }
    write_json(folder / "generation_config.json", generation)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load_exported(folder: Path) -> Model:
    """A training model with the weights of an exported folder, in fp32."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig(
        vocabulary=fields["vocab_size"],
        hidden=fields["hidden_size"],
        layers=tuple(fields["layer_types"]),
        mlp=fields["shared_intermediate_size"],
        attention_heads=fields["num_attention_heads"],
        mamba_heads=fields["mamba_n_heads"],
        head=fields["mamba_d_head"],
        state=fields["mamba_d_state"],
        conv=fields["mamba_d_conv"],
        max_positions=fields["max_position_embeddings"],
        embedding_multiplier=fields["embedding_multiplier"],
        norm_eps=fields["rms_norm_eps"],
    )
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    model = Model(config)
    own: dict[str, Tensor] = {
        "embedding": tensors["model.embed_tokens.weight"],
        "norm.weight": tensors["model.norm.weight"],
    }
    for index, kind in enumerate(config.layers):
        theirs, ours = f"model.layers.{index}", f"layers.{index}"
        own[f"{ours}.norm_mixer.weight"] = tensors[f"{theirs}.input_layernorm.weight"]
        own[f"{ours}.norm_mlp.weight"] = tensors[f"{theirs}.post_attention_layernorm.weight"]
        own[f"{ours}.mlp.gate"], own[f"{ours}.mlp.up"] = tensors[f"{theirs}.shared_mlp.input_linear.weight"].chunk(2)
        own[f"{ours}.mlp.down"] = tensors[f"{theirs}.shared_mlp.output_linear.weight"]
        if kind == ATTENTION:
            for name in ("q", "k", "v"):
                own[f"{ours}.mixer.{name}"] = tensors[f"{theirs}.self_attn.{name}_proj.weight"]
            own[f"{ours}.mixer.out"] = tensors[f"{theirs}.self_attn.o_proj.weight"]
            continue
        mamba = {name.removeprefix(f"{theirs}.mamba."): tensor for name, tensor in tensors.items()}
        rows = [config.inner, config.inner, config.state, config.state, config.mamba_heads]
        parts = torch.split(mamba["in_proj.weight"], rows)
        for name, part in zip(("gate", "x", "b", "c", "dt"), parts, strict=True):
            own[f"{ours}.mixer.{name}"] = part
        own[f"{ours}.mixer.conv_weight"] = mamba["conv1d.weight"].squeeze(1)
        for name, source in (
            ("conv_bias", "conv1d.bias"), ("dt_bias", "dt_bias"), ("a_log", "A_log"), ("d", "D"),
            ("norm", "norm.weight"), ("out", "out_proj.weight"),
        ):  # fmt: skip
            own[f"{ours}.mixer.{name}"] = mamba[source]
    model.load_state_dict(own)
    return model


def split_file(path: Path, folder: Path, size: int = PART_BYTES) -> list[Path]:
    """Copy a file into parts `NAME.0`, `NAME.1`, ... of at most `size` bytes."""
    data = path.read_bytes()
    parts = []
    for number, start in enumerate(range(0, len(data), size)):
        part = folder / f"{path.name}.{number}"
        part.write_bytes(data[start : start + size])
        parts.append(part)
    return parts


def join_file(folder: Path, name: str, out: Path) -> None:
    """Undo `split_file`."""
    parts = sorted(folder.glob(f"{name}.[0-9]*"), key=lambda path: int(path.suffix[1:]))
    out.write_bytes(b"".join(path.read_bytes() for path in parts))
