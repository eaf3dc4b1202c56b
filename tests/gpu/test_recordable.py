"""A decode step can be recorded: what it launches depends on no number that it computes or is given.

It runs on tensors that have shapes and no numbers, and no kernel is launched, so this is known without a GPU.
"""
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton.runtime.interpreter
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hamdam.engine.execution.step_inputs import Step
from hamdam.engine.models.config import Experts, ModelConfig
from hamdam.engine.models.rope import Rope
from hamdam.engine.models.transformer import Transformer
from hamdam.kernels.ops import Ops, Rows
from hamdam.kernels.reference import Reference
from hamdam.kernels.triton import chip, paged_attention, split_k, w16a16
from hamdam.kernels.triton.ops import TritonOps

META = torch.device("meta")
SHAPE = ModelConfig(
    architecture="qwen3", vocab_size=1000, hidden_size=256, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64,
    intermediate_size=512, rms_norm_eps=1e-6, rope=Rope(theta=1e4), max_context=4096, qk_norm=True,
)
GEMMA = replace(
    SHAPE, architecture="gemma3", local_rope=Rope(theta=1e3), sliding_window=64, full_layers=frozenset({1}),
    activation="gelu_tanh", post_norms=True, wide_norms=True, embedding_scale=16.0, attention_soft_cap=50.0,
    logit_soft_cap=30.0,
)  # fmt: skip
MIXTURE = replace(SHAPE, experts=Experts(count=4, per_token=2, intermediate_size=64, normalised=True))
READING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal", "aten::is_nonzero"}


class OnTheDevice(TorchDispatchMode):
    """Refuses what reads a number, and what makes or moves a tensor on or from the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        assert func.name().split(".")[0] not in READING, f"{func.name()} reads a number"
        flat = [*args, *(kwargs or {}).values(), made]
        assert not any(isinstance(x, Tensor) and x.device.type == "cpu" and x.dim() for x in flat), func.name()
        return made


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that would have been launched."""
    names: list[str] = []

    def only_note(self: Any, *args: Any, **kwargs: Any) -> None:
        names.append(self.fn.__name__)

    for executor in (triton.runtime.interpreter.GridExecutor, triton.runtime.JITFunction):
        monkeypatch.setattr(executor, "__call__" if executor.__name__ == "GridExecutor" else "run", only_note)
    for module in (chip, paged_attention, split_k, w16a16):
        monkeypatch.setattr(module, "chip_of", lambda x: chip.INTERPRETER)
    return names


def decode(ops: Ops, shape: ModelConfig = SHAPE, *, rows: int = 4, blocks: int = 64) -> Callable[[], Tensor]:
    model = Transformer(shape, ops, dtype=torch.bfloat16, device=META)
    cache = ops.new_kv_cache(2, 8, 16, shape.num_kv_heads, shape.head_dim, dtype=torch.bfloat16, device=META)

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=META)

    step = Step(
        numbers(rows), numbers(rows), numbers(rows),
        Rows(numbers(rows + 1), numbers(rows), numbers(rows, blocks), numbers(rows)),
    )
    return lambda: model.logits(model.forward(step.ids, step.positions, step.rows, cache)[step.sampled])


@pytest.mark.parametrize("invariant", [False, True])
def test_a_step_of_the_kernels_reads_no_number(launched: list[str], invariant: bool) -> None:
    step = decode(TritonOps(invariant=invariant))
    with OnTheDevice():
        assert step().shape == (4, SHAPE.vocab_size)
    assert {"attend", "place", "_rms_norm", "_activate"} <= set(launched)
    assert ("_w16a16" in launched) == invariant


def test_a_step_of_gemma_reads_none_either(launched: list[str]) -> None:
    step = decode(TritonOps(), GEMMA)
    with OnTheDevice():
        assert step().shape == (4, SHAPE.vocab_size)
    assert {"attend", "place", "_rms_norm"} <= set(launched)


def test_a_mixture_of_experts_reads_which_it_needs_and_so_is_never_recorded(launched: list[str]) -> None:
    step = decode(TritonOps(), MIXTURE)
    with OnTheDevice(), pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        step()


def test_sampling_reads_no_number_either(launched: list[str]) -> None:
    columns = torch.empty(5, 4, dtype=torch.float64, device=META)
    with OnTheDevice():
        TritonOps().sample(torch.empty(4, 1000, device=META), columns[0], columns[1].long(), *columns[2:])
    assert launched == ["_sample"]


def test_a_step_that_reads_numbers_is_seen(launched: list[str]) -> None:
    step = decode(Reference())
    with OnTheDevice(), pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        step()
