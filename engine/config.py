"""EngineConfig: every knob of the engine with its unit and default.

Not the place where the environment is read: that is server/settings.py.
"""
from dataclasses import dataclass
from pathlib import Path

BLOCK_SIZE = 16
"""Tokens of one KV block. A constant, not a knob: the kernels' layouts are made for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    model: Path
    device: str = "auto"  # auto | cpu | cuda
    dtype: str = "auto"  # auto | int8 | int16 | float32 | bfloat16; runners.py says what each is, and what auto takes
    quantize: str | None = None  # int8 | int4 | fp8: what PyTorch rounds plain weights to at load; None: nothing
    kv_dtype: str = "auto"  # auto | bfloat16 | float16 | float32 | int8 | fp8, of keys and values: kv_cache.py
    kv_memory: int | None = None  # bytes for KV blocks; None: 1 GiB on the CPU, what gpu_memory leaves on a GPU
    gpu_memory: float = 0.92  # share of a GPU's memory for everything; says nothing where kv_memory is given
    invariant: bool = False  # the same seed gives the same text whatever else runs, to the bit; native code always does
    max_context: int | None = None  # tokens; None: what the model was trained for
    max_batch_tokens: int = 256  # tokens computed in one step, decode and prefill together
    max_running: int = 64  # sequences in one step
    max_queued: int = 256  # sequences waiting, in all
    session_ttl: float = 1800.0  # seconds an idle session keeps its pin before others may take it first
    session_quota: float = 0.5  # share of the pool that one owner's idle sessions may pin before they are taken first
    threads: int | None = None  # CPU threads of the kernels; None: all cores
    cache: Path | None = None  # folder for what can be made again: compiled code, packed weights; None: nothing is kept
