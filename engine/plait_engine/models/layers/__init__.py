"""Parts that architectures share. Each holds its parameters and is the math of one block, shapes in comments."""
