"""Kernels: what a model asks of a device, and what answers. They know rows and blocks; no model, no sequence.

`ops` is the contract and `device` chooses who keeps it. This file imports nothing: what computes without PyTorch
(`cpu/`) is to be had without waiting for it.
"""
