"""Quality: how exactly the native path of the CPU computes, by dtype. How that is done is hamdam.kernels.cpu's.

A row of activations is rounded to 8 bits in groups of 32. Where a group holds a number that is far larger than the
rest, its step is large too, and nearly all that 8 bits lose is lost there: such groups get 16 bits. With 8 they are a
seventh of all groups, and the divergence from float32 is a sixth of what it is without any.
"""
EXACT_ABOVE = {"int8": 8.0, "int16": 0.0}  # times the mean size of a row's numbers: a group's largest, for 16 bits
