"""The CPU path: a step of a decoder as one native call. It imports numba and numpy, no PyTorch."""
