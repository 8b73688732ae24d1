"""What runs on a GPU only: tables of kernels, and sweeps for their stored configurations."""
