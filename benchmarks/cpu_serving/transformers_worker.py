"""Reads prompts as JSON lines, continues each greedily with transformers' ``generate``, answers with the seconds."""

import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    folder, dtype, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    print(json.dumps({"ready": 1.0}), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        ids = torch.tensor([wanted["prompt"]])
        count = {"max_new_tokens": wanted["tokens"], "min_new_tokens": wanted["tokens"]}
        started = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **count)
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
