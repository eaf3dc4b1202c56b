"""Triton kernels: Ops for GPUs, one file a kernel. Their references are in PyTorch."""
