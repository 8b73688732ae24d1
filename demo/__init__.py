"""Everything that makes the demo model: corpus, dialogues, tokenizer, training, export and evaluation.

Nothing in the packages that are shipped imports this folder; it is run by hand (README.md says how).
"""
