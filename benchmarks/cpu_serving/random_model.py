"""``python -m benchmarks.cpu_serving.random_model FOLDER``: 359 million random parameters in bf16, for speed alone.

A dense ``granitemoehybrid`` (20 Mamba-2 and 4 attention layers) with the demo's tokenizer, written by transformers, so
that transformers, llama.cpp (after its converter) and Plait all load the same file.
"""

import json
import shutil
import sys
from pathlib import Path

from plait_engine.demo_model import DEMO_FOLDER

CHANGES = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "shared_intermediate_size": 2816,
    "num_hidden_layers": 24,
    "layer_types": (["mamba"] * 5 + ["attention"]) * 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "mamba_n_heads": 32,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
}


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    described = json.loads((DEMO_FOLDER / "config.json").read_text()) | CHANGES
    torch.manual_seed(0)
    config = CONFIG_MAPPING[described["model_type"]](**described)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    # As published models spell it; transformers writes other names for the layers.
    (folder / "config.json").write_text(json.dumps(described, indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(DEMO_FOLDER / name, folder)


if __name__ == "__main__":
    main()
