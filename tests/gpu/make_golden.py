"""Writes ``golden/``: for each architecture its configuration, tensors, and transformers' logits. Needs
``transformers``.

    python -m tests.gpu.make_golden
"""

import json
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.golden import SPECS, from_folder, make_golden, reference_logits
from tests.gpu.checkpoints import FOLDER, prompt, write_checkpoint


def make(name: str, folder: Path) -> None:
    golden = make_golden(name, folder)
    tensors = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for key in sorted(file.keys()):
            value = file.get_tensor(key)
            # About what the tensor was before it was perturbed: 1 for most norms, 0 for what is stored as a difference.
            base = float(value.mean().round()) if value.dim() == 1 and "norm" in key else 0.0
            tensors[key] = {"shape": list(value.shape), "base": base}
    config = json.loads((folder / "config.json").read_text())
    for part in folder.glob("*.safetensors"):
        part.unlink()
    write_checkpoint(config, tensors, folder)
    model = from_folder(golden, torch.float32)
    vocab = config.get("text_config", config)["vocab_size"]
    logits = reference_logits(model, torch.tensor(prompt(vocab)))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps({"config": config, "tensors": tensors}, indent=1) + "\n")
    save_file({"logits": logits.contiguous()}, FOLDER / f"{name}.safetensors")
    print(name, f"{len(tensors)} tensors, logits {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    for spec in SPECS:
        with tempfile.TemporaryDirectory() as folder:
            make(spec, Path(folder))
