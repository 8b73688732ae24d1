"""Everything a sequence leaves behind in a model's layers: what it looks like, where it lies, who owns it."""
