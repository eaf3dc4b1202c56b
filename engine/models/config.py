"""ModelConfig: what a decoder-only transformer shaped like Llama looks like, in numbers. No tensors."""
import math
from dataclasses import dataclass

from ..errors import ModelError
from .rope import Rope

ARCHITECTURES = (
    "llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "gemma2", "gemma3", "mixtral", "qwen3_moe", "gpt_oss",
)  # fmt: skip
ACTIVATIONS = ("silu", "gelu_tanh")

_LARGEST = {"num_layers": 1024, "num_heads": 4096, "head_dim": 4096, "vocab_size": 1 << 24, "hidden_size": 1 << 20,
            "intermediate_size": 1 << 20, "max_context": 1 << 24}
_MOST_EXPERTS, _MOST_IN_ALL = 4096, 1 << 16  # of a layer, and of all layers: each has three names


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: each token goes through the `per_token` MLPs that a router gives the largest scores."""

    count: int
    per_token: int
    intermediate_size: int
    normalised: bool  # the weights of a token's experts add up to 1; else they are softmax over all experts
    biases: bool = False  # on the router, gate, up and down
    clamp: float | None = None  # gpt-oss' own activation: clamped at this, with `sigmoid_factor`; None: the model's
    sigmoid_factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.count <= _MOST_EXPERTS:
            raise ModelError(f"number of experts is {self.count}, which makes no sense")
        if not 0 < self.per_token <= self.count:
            raise ModelError(f"experts per token are {self.per_token} of {self.count}, which makes no sense")
        if not 0 < self.intermediate_size <= _LARGEST["intermediate_size"]:
            raise ModelError(f"intermediate_size of experts is {self.intermediate_size}, which makes no sense")
        for name, number in (("swiglu_limit", self.clamp), ("swiglu_alpha", self.sigmoid_factor)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ModelError(f"{name} is {number}, which makes no sense")


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
    rope: Rope
    max_context: int  # tokens it was trained for
    rotary_dim: int | None = None  # how many of a head's numbers turn; None: all
    local_rope: Rope | None = None  # of the layers with a window; None: as the others'
    unturned_layers: frozenset[int] = frozenset()  # numbers of the layers that know no positions
    tie_word_embeddings: bool = False  # the head is the embedding, in the same memory
    attention_bias: bool = False  # on q, k and v
    attention_output_bias: bool = False  # on o
    qk_norm: bool = False  # RMS norm over head_dim on q and k, before rotary
    sliding_window: int | None = None  # tokens a query sees, itself included; None: all
    full_layers: frozenset[int] = frozenset()  # numbers of the layers that see everything in spite of it
    attention_scale: float | None = None  # multiplies scores; None: head_dim ** -0.5
    attention_soft_cap: float | None = None  # scores become cap * tanh(score / cap)
    attention_sinks: bool = False  # a learned logit a head, of a key that all see and whose value is 0
    activation: str = "silu"  # one of ACTIVATIONS
    post_norms: bool = False  # norms also of what attention and MLP give, before it is added
    norm_offset: bool = False  # norms' weights are stored as what is added to 1
    wide_norms: bool = False  # norms' weights are kept in float32: 1 and a little is not to be rounded
    embedding_scale: float = 1.0
    logit_soft_cap: float | None = None
    experts: Experts | None = None
    dense_layers: frozenset[int] = frozenset()  # numbers of the layers that have a plain MLP in spite of `experts`

    def __post_init__(self) -> None:
        refuse_unknown(self.architecture)
        for field in (*_LARGEST, "num_kv_heads"):
            value = getattr(self, field)
            if not 0 < value <= _LARGEST.get(field, self.num_heads):
                raise ModelError(f"{field} is {value}, which makes no sense")
        for field in ("rms_norm_eps", "attention_scale", "attention_soft_cap", "embedding_scale", "logit_soft_cap"):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ModelError(f"{field} is {value}, which makes no sense")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} heads do not divide into {self.num_kv_heads} KV heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary positions need an even one")
        if self.turning % 2 or not 0 < self.turning <= self.head_dim:
            raise ModelError(f"{self.turning} of {self.head_dim} numbers of a head turn, which makes no sense")
        for rope in (self.rope, self.local_rope):
            if rope is not None:
                rope.check_factors(self.turning // 2)
                if rope.kind == "dynamic" and self.turning < 4:
                    raise ModelError("dynamic rotary scaling needs at least 4 numbers of a head that turn")
        if self.experts is not None and self.num_layers * self.experts.count > _MOST_IN_ALL:
            raise ModelError(f"{self.num_layers} layers of {self.experts.count} experts are more than a model has")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelError(f"sliding_window is {self.sliding_window}, which makes no sense")
        if self.activation not in ACTIVATIONS:
            raise ModelError(f"activation {self.activation!r} is not supported")

    @property
    def turning(self) -> int:
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def longest_context(self) -> int:
        """Tokens up to which positions can be stretched for who asks for it."""
        stretched = self.max_context * self.rope.factor if self.rope.kind == "dynamic" else self.max_context
        return max(self.max_context, min(int(stretched), _LARGEST["max_context"]))

    def window_of(self, layer: int) -> int | None:
        return None if layer in self.full_layers else self.sliding_window

    def rope_of(self, layer: int) -> Rope | None:
        """None: the layer does not turn anything."""
        if layer in self.unturned_layers:
            return None
        local = self.local_rope is not None and self.window_of(layer) is not None
        return self.local_rope if local else self.rope

    def experts_of(self, layer: int) -> Experts | None:
        return None if layer in self.dense_layers else self.experts

    @property
    def peculiarities(self) -> list[str]:
        """What sets it apart from the plain shape that every path computes, in words."""
        facts = {
            "layers with a window beside others": self.sliding_window is not None and self.full_layers,
            "layers whose positions differ": self.unturned_layers or self.local_rope is not None,
            "another scale of attention": self.scale != self.head_dim**-0.5,
            "a soft cap": self.attention_soft_cap is not None or self.logit_soft_cap is not None,
            "attention sinks": self.attention_sinks,
            f"the activation {self.activation}": self.activation != "silu",
            "norms after attention and MLP": self.post_norms,
            "norms in float32": self.norm_offset or self.wide_norms,
            "a scaled embedding": self.embedding_scale != 1,
            "a mixture of experts": self.experts is not None,
        }
        return [words for words, there in facts.items() if there]


def refuse_unknown(architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"architecture {architecture[:80]!r} is not supported (supported: {known})")
