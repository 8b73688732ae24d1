"""What only NVIDIA GPUs need beside their kernels."""
