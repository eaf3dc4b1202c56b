"""product and converted: tl.dot and .to() as they are meant, under Triton's interpreter too. No kernel of its own."""
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""The interpreter holds a bfloat16 as an integer with its bits. It multiplies these integers, makes the integer itself
of an int8, and cuts a float32 off instead of rounding it. To say it the long way there costs nothing on a GPU."""


@triton.jit
def product(a, b, total=None):
    """a [m, k] times b [k, n], plus total -> [m, n] float32. What is float32 is multiplied as such."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def converted(x, dtype: tl.constexpr):
    """x in another dtype, ties to even."""
    if INTERPRETED:
        x = x.to(tl.float32)
        if dtype == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(dtype)
