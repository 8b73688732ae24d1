"""Small tasks for lm-eval that need no download, and a comparison of what two models got for each item."""
