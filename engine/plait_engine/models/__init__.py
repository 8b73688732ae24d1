"""One file per architecture, named as transformers' ``model_type``; ``layers/`` holds the shared parts."""
