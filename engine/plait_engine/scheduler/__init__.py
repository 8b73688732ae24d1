"""Which tokens are computed next. Knows no tensors."""
