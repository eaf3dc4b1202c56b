"""Mlp and ExpertMlp: what follows attention in a layer, plain or as a mixture of experts. No norm, no residual."""
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hamdam.kernels.ops import Ops, Weight

from .config import Experts
from .weights import Packs

Parameter = Callable[..., Tensor]
"""(*shape) -> an uninitialised tensor of the model's dtype, on its device."""


class Mlp:
    """gate over up is one matrix: they are used together."""

    def __init__(self, hidden: int, wide: int, activation: str, parameter: Parameter) -> None:
        self.gate_up: Weight = parameter(2 * wide, hidden)
        self.down: Weight = parameter(hidden, wide)
        self._gelu = activation == "gelu_tanh"

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield from _named("mlp", self.gate_up, self.down, "weight")

    def pack(self, ops: Packs) -> None:
        self.gate_up, self.down = ops.pack(self.gate_up), ops.pack(self.down)

    def forward(self, ops: Ops, x: Tensor) -> Tensor:
        """[tokens, hidden] -> the same."""
        gate_up = ops.linear(x, self.gate_up)
        return ops.linear(ops.gelu_and_mul(gate_up) if self._gelu else ops.silu_and_mul(gate_up), self.down)


class ExpertMlp:
    """Exact: no expert has a capacity, no token is dropped. Which experts a step needs is read back from the device, so
    no such step can be recorded (decode_graphs.py)."""

    def __init__(self, hidden: int, experts: Experts, parameter: Parameter) -> None:
        count, wide = experts.count, experts.intermediate_size
        self._experts = experts
        self.router = parameter(count, hidden)
        self.gate_up: list[Weight] = [parameter(2 * wide, hidden) for _ in range(count)]
        self.down: list[Weight] = [parameter(hidden, wide) for _ in range(count)]
        biased = experts.biases
        self.router_bias = parameter(count) if biased else None
        self.gate_up_bias = [parameter(2 * wide) if biased else None for _ in range(count)]
        self.down_bias = [parameter(hidden) if biased else None for _ in range(count)]

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield "mlp.gate.weight", self.router
        if self.router_bias is not None:
            yield "mlp.gate.bias", self.router_bias
        for number in range(self._experts.count):
            name = f"mlp.experts.{number}"
            yield from _named(name, self.gate_up[number], self.down[number], "weight")
            gate_up_bias, down_bias = self.gate_up_bias[number], self.down_bias[number]
            if gate_up_bias is not None and down_bias is not None:
                yield from _named(name, gate_up_bias, down_bias, "bias")

    def pack(self, ops: Packs) -> None:
        for weights in (self.gate_up, self.down):
            for number, weight in enumerate(weights):
                weights[number] = ops.pack(weight)

    def forward(self, ops: Ops, x: Tensor) -> Tensor:
        """[tokens, hidden] -> the same: of each token the sum of its experts' results, each times its weight."""
        chosen, weights = self._route(ops, x)
        out = torch.zeros_like(x)
        for number in torch.unique(chosen).tolist():
            token, place = (chosen == number).nonzero(as_tuple=True)
            gate_up = ops.linear(x[token], self.gate_up[number], self.gate_up_bias[number])
            result = ops.linear(self._activated(ops, gate_up), self.down[number], self.down_bias[number])
            out.index_add_(0, token, (result * weights[token, place, None]).to(out.dtype))
        return out

    def _route(self, ops: Ops, x: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, per_token]: the experts' numbers, and their weights in float32."""
        scores = ops.linear(x, self.router, self.router_bias).float()  # [tokens, experts]
        largest, chosen = scores.topk(self._experts.per_token, dim=-1)
        if self._experts.normalised:
            return chosen, largest.softmax(-1)
        return chosen, (largest - scores.logsumexp(-1, keepdim=True)).exp()

    def _activated(self, ops: Ops, gate_up: Tensor) -> Tensor:
        limit, factor = self._experts.clamp, self._experts.sigmoid_factor
        return ops.silu_and_mul(gate_up) if limit is None else clamped_swiglu(gate_up, limit, factor)


def clamped_swiglu(gate_up: Tensor, limit: float, factor: float) -> Tensor:
    """gpt-oss' activation, [tokens, 2 n] -> [tokens, n]: gate sigmoid(factor gate) (up + 1), gate at most `limit`, up
    between -limit and limit."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(factor * gate) * (up + 1)


def _named(name: str, gate_up: Tensor, down: Tensor, kind: str) -> Iterator[tuple[str, Tensor]]:
    for part, half in zip(("gate", "up"), gate_up.chunk(2), strict=True):
        yield f"{name}.{part}_proj.{kind}", half
    yield f"{name}.down_proj.{kind}", down
