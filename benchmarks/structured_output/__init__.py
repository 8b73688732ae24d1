"""Answers that must follow a grammar: whether they do, and what it costs."""
