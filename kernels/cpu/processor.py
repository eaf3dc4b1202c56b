"""Processor: which instructions compiled code may use here. Not what is done where there are none: sums.py.

It is numba's answer, which NUMBA_CPU_NAME and NUMBA_CPU_FEATURES may lower: with "x86-64-v3" and "+avx2,+fma,+f16c" any
machine computes as one does that has no AVX-512.
"""
import llvmlite.binding as llvm
from numba.core import config
from numba.core.codegen import get_host_cpu_features

NAME: str = llvm.get_host_cpu_name() if config.CPU_NAME is None else config.CPU_NAME
FEATURES: str = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
_ALL = FEATURES.split(",")

NEEDED = ("avx2", "fma", "f16c")  # without them all would have to be put together of single instructions
HAS_INT8_DOT, HAS_BF16_DOT, HAS_SHORT_SUMS = (f"+{name}" in _ALL for name in ("avx512vnni", "avx512bf16", "avx2"))
KIND = "" if HAS_INT8_DOT else "AVX2"  # said where it is not the fastest there is


def lacking() -> list[str]:
    return [name for name in NEEDED if f"+{name}" not in _ALL]
