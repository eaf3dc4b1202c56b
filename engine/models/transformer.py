"""Transformer: one decoder for every family, whose differences ModelConfig declares.

It computes a step over a paged KV cache; it knows no sequence, no sampling and no file.
"""
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from hamdam.kernels.ops import Attention, Ops, Rows, Weight

from .config import ModelConfig
from .layer import Layer
from .rotary import rotary_tables
from .weights import Source, assign, emptied


class Transformer:
    def __init__(
        self, config: ModelConfig, ops: Ops, *, dtype: torch.dtype, device: torch.device, context: int | None = None
    ) -> None:
        """Allocates the parameters; `load` fills them. context: the longest that is served, for which some models have
        other positions; None: what the model was trained for."""
        self.config, self.ops, self._dtype = config, ops, dtype
        hidden = config.hidden_size

        def parameter(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def norm(size: int) -> Tensor:
            return torch.empty(size, dtype=torch.float32 if config.wide_norms else dtype, device=device)

        self.embedding: Weight = parameter(config.vocab_size, hidden)
        self._parameters: dict[str, Tensor] = {}  # until they are loaded
        self.layers: list[Layer] = []
        for number in range(config.num_layers):
            layer = Layer(config, number, parameter, norm)
            self.layers.append(layer)
            self._parameters |= emptied({f"model.layers.{number}.{name}": part for name, part in layer.named()})
        self.norm = norm(hidden)
        self.head: Weight = self.embedding if config.tie_word_embeddings else parameter(config.vocab_size, hidden)
        ends = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        self._parameters |= emptied(ends if config.tie_word_embeddings else ends | {"lm_head.weight": self.head})
        self.sinks: Tensor | None = None  # [layers, heads], once they are loaded
        self._tables = {
            rope: (torch.from_numpy(table.frequencies).to(device), torch.from_numpy(table.sizes).to(device))
            for rope, table in rotary_tables(config, context or config.max_context).items()
        }

    def load(self, tensors: Iterable[tuple[str, Source]]) -> None:
        """Fills every parameter, then packs the matrices. ModelError where `tensors` are not exactly the model's."""
        tied = self.config.tie_word_embeddings
        parameters = self._parameters
        # A tied head is the embedding, also where the checkpoint holds a head beside it.
        wanted = ((name, tensor) for name, tensor in tensors if not (tied and name == "lm_head.weight"))
        packing = assign(parameters, wanted, self.ops)
        parameters.clear()
        if self.config.norm_offset:  # from what is added to 1 to the factors themselves
            for weight in (self.norm, *(weight for layer in self.layers for _, weight in layer.norms())):
                weight += 1
        sinks = [layer.sinks for layer in self.layers if layer.sinks is not None]
        self.sinks = torch.stack(sinks) if sinks else None
        for layer in self.layers:
            layer.pack(packing)
        self.embedding = packing.looked_up(self.embedding)
        self.head = self.embedding if tied else packing.pack(self.head)

    def parameters(self) -> dict[str, Tensor]:
        """Before `load`: every parameter under the name that checkpoints give it."""
        return dict(self._parameters)

    def forward(self, ids: Tensor, positions: Tensor, rows: Rows, cache: Tensor) -> Tensor:
        """Computes a step and writes its KV. ids and positions: [tokens] -> each row's last token, [rows, hidden]."""
        ops, config, eps = self.ops, self.config, self.config.rms_norm_eps
        heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        angles = {rope: turns(positions, *table) for rope, table in self._tables.items()}
        attentions = self._attentions(rows, cache)

        added = self._embedded(ids)  # [tokens, hidden]
        if config.embedding_scale != 1:
            added = added * torch.tensor(config.embedding_scale, dtype=added.dtype)
        stream = torch.zeros_like(added)  # the residual stream: what was added so far
        for index, layer in enumerate(self.layers):
            x = ops.rms_norm(added, layer.attention_norm, eps, residual=stream)
            qkv = ops.linear(x, layer.qkv, layer.qkv_bias).view(len(ids), sum(heads), config.head_dim)
            query, key, value = torch.split(qkv, heads, dim=1)  # [tokens, heads or kv_heads, head_dim]
            norms = None
            if layer.query_norm is not None and layer.key_norm is not None:
                norms = layer.query_norm, layer.key_norm, eps
            cosine, sine = angles[config.rope_of(index)]
            query = ops.turn_and_store(query, key, value, cosine, sine, cache, index, rows, norms=norms)
            attention = attentions[config.window_of(index)]
            added = ops.linear(attention(index, query), layer.output, layer.output_bias)
            if layer.after_attention_norm is not None:
                added = ops.rms_norm(added, layer.after_attention_norm, eps)
            added = layer.mlp.forward(ops, ops.rms_norm(added, layer.mlp_norm, eps, residual=stream))
            if layer.after_mlp_norm is not None:
                added = ops.rms_norm(added, layer.after_mlp_norm, eps)
        last = rows.query_starts[1:] - 1
        return ops.rms_norm(added[last], self.norm, eps, residual=stream[last])

    def _embedded(self, ids: Tensor) -> Tensor:
        if isinstance(self.embedding, Tensor):
            return F.embedding(ids, self.embedding)
        taken: Tensor = self.embedding.take(ids).dequantise()
        return taken.to(self._dtype)

    def _attentions(self, rows: Rows, cache: Tensor) -> dict[int | None, Attention]:
        """By the window that layers have."""
        config = self.config
        return {
            window: self.ops.paged_attention(
                cache, rows, scale=config.scale, window=window, soft_cap=config.attention_soft_cap, sinks=self.sinks
            )
            for window in {config.window_of(index) for index in range(config.num_layers)}
        }

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows, hidden] -> [rows, vocabulary] float32; `out`, where that is given."""
        logits = self.ops.linear(hidden, self.head)
        logits = logits.float() if out is None else out.copy_(logits)
        cap = self.config.logit_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def turns(positions: Tensor, frequencies: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """For `Ops.rotary`: positions [tokens], a RotaryTable's two [head_dim / 2] -> cosine and sine
    [tokens, 1, head_dim], the first half of the sine negative."""
    angles = positions[:, None, None] * frequencies
    cosine, sine = angles.cos() * sizes, angles.sin() * sizes
    return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
