"""Requests to tokens: state, scheduling, model execution. Knows no HTTP."""
