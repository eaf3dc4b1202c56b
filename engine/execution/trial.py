"""Trial: whether a device's own operations compute a model as the reference does, found out before anybody waits.

Kernels that were never on this chip, a compiler that is too old, a driver that is too new: whatever it is, the server
starts all the same, and says it.
"""
import logging
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hamdam.kernels.ops import Ops
from hamdam.kernels.quantized_whole import rounded
from hamdam.kernels.reference import Reference

from ..config import BLOCK_SIZE
from ..models.config import ModelConfig
from ..models.transformer import Transformer
from ..policy.batch import Row
from ..policy.sequence import Sequence
from .rehearsal import made_up, numbers_of_tokens
from .step_inputs import Shape, StepInputs, blocks_of

log = logging.getLogger("hamdam.engine")
WORDS = 512  # of the vocabulary
EXPERTS = 4
CONTEXTS = (40, 19, 2)  # of the rows of two steps; of the others each has one
AGREED = {torch.float32: 1e-3, torch.bfloat16: 0.05}  # of the largest number
LARGEST = ((0.0, 0, 1.0, 0.0), (1.0, 1, 1.0, 0.0), (1.0, 0, 1e-6, 0.0), (1.0, 0, 1.0, 1.0))  # all take the largest


def working(
    ops: Ops, model: ModelConfig, *, dtype: torch.dtype, kv_dtype: torch.dtype | None = None, device: torch.device,
    most: int, forms: tuple[str, ...] = (),
) -> Ops:
    """`ops`, or the reference where they have a fault, which is said once. kv_dtype: of the cache; None: the model's.
    forms: of quantised matrices to try."""
    fault = fault_of(ops, model, dtype=dtype, kv_dtype=kv_dtype, device=device, most=most, forms=forms)
    if isinstance(ops, Reference):
        fault = fault or "Triton is not installed"
    if fault is None:
        return ops
    log.warning("the kernels for this GPU cannot be used, and PyTorch computes, which is slower: %s", fault)
    return Reference()


@torch.inference_mode()
def fault_of(
    ops: Ops, model: ModelConfig, *, dtype: torch.dtype, kv_dtype: torch.dtype | None = None, device: torch.device,
    most: int, forms: tuple[str, ...] = (),
) -> str | None:
    """Why `ops` cannot compute this model here, in one line; None where they can.

    One layer of each kind that it has, with random weights, is tried in decode, in mixed steps and in prompts of up to
    `most` tokens, so that afterwards all is compiled.
    """
    small = _small(model)
    right = _logits(Reference(), small, dtype, kv_dtype or dtype, device, most)
    words = torch.randn(len(LARGEST), model.vocab_size, generator=_generator(device), device=device)
    try:
        found = _logits(ops, small, dtype, kv_dtype or dtype, device, most)
        drawn = _drawn(ops, words)
        wrong = [form for form in forms if not _multiplies(ops, form, dtype, device)]
    except Exception as error:  # noqa: BLE001 - there is no telling what a compiler or a driver raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not (found - right).abs().max() <= AGREED[dtype] * right.abs().max():  # not-a-number does not agree
        return "what they compute is not what the reference computes"
    if drawn != words.argmax(-1).tolist():
        return "what they draw is not what the reference draws"
    if wrong:
        return f"their products with weights in {wrong[0]} are not those of the reference"
    return None


def _small(model: ModelConfig) -> ModelConfig:
    """Its first layer; and where layers differ in any way, as a second one those that differ, all ways together.

    Each token goes through all of a few experts: where only some are taken, a last bit decides which.
    """
    second = frozenset({1})
    others = [layers and second for layers in (model.full_layers, model.unturned_layers, model.dense_layers)]
    full, unturned, dense = others
    experts = model.experts
    if experts is not None:
        few = min(experts.count, EXPERTS)
        experts = replace(experts, count=few, per_token=few)
    return replace(
        model, num_layers=2 if any(others) else 1, vocab_size=min(model.vocab_size, WORDS), tie_word_embeddings=True,
        full_layers=full, unturned_layers=unturned, dense_layers=dense, experts=experts,
    )


def _multiplies(ops: Ops, form: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products with a quantised matrix are right, of a few rows and of many."""
    generator = _generator(device)
    weight = rounded(torch.randn(192, 256, generator=generator, device=device), form)
    x = torch.randn(70, 256, generator=generator, device=device).to(dtype)
    right = Reference().linear(x, weight)
    found = (ops.linear(x[:count], weight) - right[:count] for count in (1, len(x)))
    return all(bool(wrong.abs().max() <= AGREED[dtype] * right.abs().max()) for wrong in found)


def random_weights(parameters: dict[str, Tensor], generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """As `Transformer.load` takes them, so that numbers around 1 stay so in every layer. generator: on the device."""
    for name, parameter in parameters.items():
        numbers = torch.randn(parameter.shape, generator=generator, device=parameter.device)
        if "_proj.weight" in name:
            numbers *= parameter.shape[1] ** -0.5
        yield name, 1 + numbers / 4 if "norm" in name else numbers


def _logits(
    ops: Ops, model: ModelConfig, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device, most: int
) -> Tensor:
    """After the last token of every row of every step, [rows, words] float32."""
    decoder = Transformer(model, ops, dtype=dtype, device=device)
    decoder.load(random_weights(decoder.parameters(), _generator(device)))
    blocks = max(3 * len(CONTEXTS), blocks_of(most))
    cache = ops.new_kv_cache(
        model.num_layers, blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim, dtype=kv_dtype, device=device
    )
    inputs = StepInputs(Shape(max(sum(CONTEXTS), most), len(CONTEXTS), len(CONTEXTS), blocks), device)
    found = []
    for rows in _steps(most, model.vocab_size):
        step = inputs.take(rows)
        found.append(decoder.logits(decoder.forward(step.ids, step.positions, step.rows, cache)))
    return torch.cat(found)


def _steps(most: int, words: int) -> Iterator[list[Row]]:
    def of(number: int, count: int, first_block: int) -> Sequence:
        ids = [(7 * number + at) % words for at in range(count)]
        return made_up(number, ids, list(range(first_block, first_block + blocks_of(count))))

    sequences = [of(number, context, 3 * number) for number, context in enumerate(CONTEXTS)]
    yield [Row(sequence, 0, len(sequence.ids) - 1, sample=True) for sequence in sequences]
    yield [Row(sequence, len(sequence.ids) - 1, 1, sample=True) for sequence in sequences]
    for count in numbers_of_tokens(most):
        yield [Row(of(count, count, 0), 0, count, sample=True)]


def _drawn(ops: Ops, logits: Tensor) -> list[int]:
    heat, top_k, mass, least = torch.tensor(LARGEST, dtype=torch.float64, device=logits.device).T
    drawn: list[int] = ops.sample(logits.clone(), heat, top_k.long(), mass, least, torch.full_like(heat, 0.5)).tolist()
    return drawn


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)
