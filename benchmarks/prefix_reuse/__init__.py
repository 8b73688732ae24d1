"""How much of the prompts' work the prefix tree saves, by eviction policy and memory. No model runs."""
