"""Plait beside transformers and llama.cpp on a CPU: the same model, the same prompts, interleaved runs."""
