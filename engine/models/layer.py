"""Layer: one layer's parameters, by the names that the decoder gives them. transformer.py computes with them."""
from collections.abc import Iterator

from torch import Tensor

from hamdam.kernels.ops import Weight

from .config import ModelConfig
from .mlp import ExpertMlp, Mlp, Parameter
from .weights import Packs


class Layer:
    """The matrices are fused as they are used: q over k over v. A norm that the model does not have is None."""

    def __init__(self, config: ModelConfig, number: int, parameter: Parameter, norm: Parameter) -> None:
        """parameter and norm make uninitialised tensors, norm those of norms' weights."""
        self._config = config
        hidden, dim = config.hidden_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim
        self.attention_norm = norm(hidden)
        self.qkv: Weight = parameter(query + 2 * key, hidden)
        self.qkv_bias = parameter(query + 2 * key) if config.attention_bias else None
        self.query_norm = norm(dim) if config.qk_norm else None
        self.key_norm = norm(dim) if config.qk_norm else None
        self.sinks = parameter(config.num_heads) if config.attention_sinks else None
        self.output: Weight = parameter(hidden, query)
        self.output_bias = parameter(hidden) if config.attention_output_bias else None
        self.after_attention_norm = norm(hidden) if config.post_norms else None
        self.mlp_norm = norm(hidden)
        experts = config.experts_of(number)
        self.mlp: Mlp | ExpertMlp
        if experts is None:
            self.mlp = Mlp(hidden, config.intermediate_size, config.activation, parameter)
        else:
            self.mlp = ExpertMlp(hidden, experts, parameter)
        self.after_mlp_norm = norm(hidden) if config.post_norms else None

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, or the part of a fused one."""
        config = self._config
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        yield from self.norms()
        for kind, fused in (("weight", self.qkv), ("bias", self.qkv_bias)):
            if fused is not None:
                for name, part in zip("qkv", fused.split((query, key, key)), strict=True):
                    yield f"self_attn.{name}_proj.{kind}", part
        others = {"sinks": self.sinks, "o_proj.weight": self.output, "o_proj.bias": self.output_bias}
        for name, parameter in others.items():
            if parameter is not None:
                yield f"self_attn.{name}", parameter
        yield from self.mlp.named()

    def norms(self) -> Iterator[tuple[str, Tensor]]:
        """Their weights. Where norms stand after attention and MLP too, checkpoints shift a name."""
        before_mlp = "pre_feedforward_layernorm" if self._config.post_norms else "post_attention_layernorm"
        norms = {
            "input_layernorm": self.attention_norm,
            "self_attn.q_norm": self.query_norm,
            "self_attn.k_norm": self.key_norm,
            before_mlp: self.mlp_norm,
        }
        if self._config.post_norms:
            norms["post_attention_layernorm"] = self.after_attention_norm
            norms["post_feedforward_layernorm"] = self.after_mlp_norm
        for name, weight in norms.items():
            if weight is not None:
                yield f"{name}.weight", weight

    def pack(self, ops: Packs) -> None:
        self.qkv, self.output = ops.pack(self.qkv), ops.pack(self.output)
        self.mlp.pack(ops)

