"""Llama: one decoder for the Llama, Mistral and Qwen family, whose differences ModelConfig declares.

It computes a step over a paged KV cache; it knows no sequence, no sampling and no file.
"""
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hamdam.kernels.ops import Ops, Rows, Weight

from .config import ModelConfig
from .rotary import inverse_frequencies
from .weights import assign


@dataclass(slots=True)
class Layer:
    """The matrices are fused as they are used: q over k over v, and gate over up."""

    attention_norm: Tensor  # [hidden]
    qkv: Weight  # [(heads + 2 kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None
    output: Weight  # [hidden, heads * head_dim]
    output_bias: Tensor | None
    mlp_norm: Tensor  # [hidden]
    gate_up: Weight  # [2 intermediate, hidden]
    down: Weight  # [hidden, intermediate]

    def named(self, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
        """Every parameter, or the part of a fused one, under the name that checkpoints give it."""
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        yield "input_layernorm.weight", self.attention_norm
        for kind, fused in (("weight", self.qkv), ("bias", self.qkv_bias)):
            if fused is not None:
                for name, part in zip("qkv", fused.split((query, key, key)), strict=True):
                    yield f"self_attn.{name}_proj.{kind}", part
        for name, norm in (("q", self.query_norm), ("k", self.key_norm)):
            if norm is not None:
                yield f"self_attn.{name}_norm.weight", norm
        yield "self_attn.o_proj.weight", self.output
        if self.output_bias is not None:
            yield "self_attn.o_proj.bias", self.output_bias
        yield "post_attention_layernorm.weight", self.mlp_norm
        for name, part in zip(("gate", "up"), self.gate_up.chunk(2), strict=True):
            yield f"mlp.{name}_proj.weight", part
        yield "mlp.down_proj.weight", self.down

    def pack(self, ops: Ops) -> None:
        self.qkv, self.output = ops.pack(self.qkv), ops.pack(self.output)
        self.gate_up, self.down = ops.pack(self.gate_up), ops.pack(self.down)


class Llama:
    def __init__(self, config: ModelConfig, ops: Ops, *, dtype: torch.dtype, device: torch.device) -> None:
        """Allocates the parameters; `load` fills them."""
        self.config, self.ops = config, ops
        hidden, wide = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def parameter(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.embedding = parameter(config.vocab_size, hidden)
        self.layers = [
            Layer(
                attention_norm=parameter(hidden),
                qkv=parameter(query + 2 * key, hidden),
                qkv_bias=parameter(query + 2 * key) if config.attention_bias else None,
                query_norm=parameter(config.head_dim) if config.qk_norm else None,
                key_norm=parameter(config.head_dim) if config.qk_norm else None,
                output=parameter(hidden, query),
                output_bias=parameter(hidden) if config.attention_output_bias else None,
                mlp_norm=parameter(hidden),
                gate_up=parameter(2 * wide, hidden),
                down=parameter(hidden, wide),
            )
            for _ in range(config.num_layers)
        ]
        self.norm = parameter(hidden)
        self.head: Weight = self.embedding if config.tie_word_embeddings else parameter(config.vocab_size, hidden)
        self.frequencies = torch.from_numpy(inverse_frequencies(config)).to(device)

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fills every parameter, then packs the matrices. ModelError where `tensors` are not exactly the model's."""
        tied = self.config.tie_word_embeddings
        parameters = self.parameters()
        # A tied head is the embedding, also where the checkpoint holds a head beside it.
        assign(parameters, ((name, tensor) for name, tensor in tensors if not (tied and name == "lm_head.weight")))
        parameters.clear()  # the matrices are freed as they are packed: one layer at a time is in memory twice
        for layer in self.layers:
            layer.pack(self.ops)
        if not tied:
            self.head = self.ops.pack(self.head)

    def parameters(self) -> dict[str, Tensor]:
        """Before `load`: every parameter under the name that checkpoints give it."""
        parameters = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for index, layer in enumerate(self.layers):
            parameters |= {f"model.layers.{index}.{name}": part for name, part in layer.named(self.config)}
        if not self.config.tie_word_embeddings:
            parameters["lm_head.weight"] = self.head
        return parameters

    def forward(self, ids: Tensor, positions: Tensor, rows: Rows, cache: Tensor) -> Tensor:
        """Computes a step and writes its KV. ids and positions: [tokens] -> each row's last token, [rows, hidden]."""
        ops, eps = self.ops, self.config.rms_norm_eps
        heads = [self.config.num_heads, self.config.num_kv_heads, self.config.num_kv_heads]
        cosine, sine = turns(positions, self.frequencies)
        scale, window = self.config.head_dim**-0.5, self.config.sliding_window
        attention = ops.paged_attention(cache, rows, scale=scale, window=window)

        added = F.embedding(ids, self.embedding)  # [tokens, hidden]
        stream = torch.zeros_like(added)  # the residual stream: what was added so far
        for index, layer in enumerate(self.layers):
            x = ops.rms_norm(added, layer.attention_norm, eps, residual=stream)
            qkv = ops.linear(x, layer.qkv, layer.qkv_bias).view(len(ids), sum(heads), self.config.head_dim)
            query, key, value = torch.split(qkv, heads, dim=1)  # [tokens, heads or kv_heads, head_dim]
            norms = None
            if layer.query_norm is not None and layer.key_norm is not None:
                norms = layer.query_norm, layer.key_norm, eps
            query = ops.turn_and_store(query, key, value, cosine, sine, cache, index, rows, norms=norms)
            added = ops.linear(attention(index, query), layer.output, layer.output_bias)
            x = ops.rms_norm(added, layer.mlp_norm, eps, residual=stream)
            added = ops.linear(ops.silu_and_mul(ops.linear(x, layer.gate_up)), layer.down)
        last = rows.query_starts[1:] - 1
        return ops.rms_norm(added[last], self.norm, eps, residual=stream[last])

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows, hidden] -> [rows, vocabulary] float32; `out`, where that is given."""
        logits = self.ops.linear(hidden, self.head)
        return logits.float() if out is None else out.copy_(logits)


def turns(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """For `Ops.rotary`: positions [tokens], frequencies [head_dim / 2] -> cosine and sine [tokens, 1, head_dim], the
    first half of the sine negative."""
    angles = positions[:, None, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
