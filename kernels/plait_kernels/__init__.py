"""Tensors to tensors. Knows no requests."""
