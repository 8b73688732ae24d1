"""Model folders made up from a configuration: weights are random, and a token is written as its number."""

import json
from pathlib import Path

HERE = Path(__file__).parent
NAMES = {"m1": "Gated DeltaNet hybrid, 4.2 B", "m2": "Mamba-2 hybrid, 3.2 B", "m3": "sliding-window hybrid, 3.9 B"}
BYTES = 256


def write_model(name: str, folder: Path) -> dict[str, object]:
    """``folder`` for ``--load-format random``, and its configuration."""
    config: dict[str, object] = json.loads((HERE / f"{name}.json").read_text())
    size = config["vocab_size"]
    assert isinstance(size, int)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(size)))
    return config


def _tokenizer(size: int) -> dict[str, object]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(alphabet)} | {f"t{i}": i for i in range(len(alphabet), size)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
