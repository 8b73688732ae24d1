"""HTTP, protocol types, streaming, metrics endpoint, CLI. Knows no tensors."""
