"""ModelConfig: what a decoder-only transformer of the Llama family looks like, in numbers. No tensors."""
import math
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("linear", "llama3")  # beside plain rotary, which is `rope_scaling=None`

_LARGEST = {"num_layers": 1024, "num_heads": 4096, "head_dim": 4096, "vocab_size": 1 << 24, "hidden_size": 1 << 20,
            "intermediate_size": 1 << 20, "max_context": 1 << 24}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Checked on construction: ModelError names the field, so nothing is allocated for numbers that make no sense.

    The widths: q is `num_heads * head_dim`, k and v are `num_kv_heads * head_dim`, which need not be `hidden_size`.
    """

    architecture: str  # one of ARCHITECTURES
    vocab_size: int  # rows of the embedding; may exceed what the tokenizer knows
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    max_context: int  # tokens it was trained for
    rope_scaling: dict[str, Any] | None = None  # always with "rope_type", one of ROPE_TYPES
    rope_factors: tuple[float, ...] | None = None  # divisors of the inverse frequencies, head_dim / 2 of them
    tie_word_embeddings: bool = False  # the head is the embedding, in the same memory
    attention_bias: bool = False  # on q, k and v
    attention_output_bias: bool = False  # on o
    qk_norm: bool = False  # RMS norm over head_dim on q and k, before rotary
    sliding_window: int | None = None  # tokens a query sees, itself included, in every layer; None: all

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ModelError(f"architecture {self.architecture!r} is not supported (supported: {known})")
        for field in (*_LARGEST, "num_kv_heads"):
            value = getattr(self, field)
            if not 0 < value <= _LARGEST.get(field, self.num_heads):
                raise ModelError(f"{field} is {value}, which makes no sense")
        for field in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ModelError(f"{field} is {value}, which makes no sense")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} heads do not divide into {self.num_kv_heads} KV heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary positions need an even one")
        if self.rope_scaling is not None and self.rope_scaling["rope_type"] not in ROPE_TYPES:
            raise ModelError(f"rotary scaling {self.rope_scaling['rope_type']!r} is not supported")
        if self.rope_factors is not None and (
            len(self.rope_factors) != self.head_dim // 2
            or not all(math.isfinite(factor) and factor > 0 for factor in self.rope_factors)
        ):
            raise ModelError(f"rotary factors must be {self.head_dim // 2} positive numbers")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelError(f"sliding_window is {self.sliding_window}, which makes no sense")
