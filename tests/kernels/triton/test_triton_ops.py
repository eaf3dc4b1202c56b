"""TritonOps keeps the contract: the tests that every implementation passes, under the interpreter, and what it adds.

Its seeds are fewer: under the interpreter a program takes milliseconds.
"""
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from hamdam.kernels.device import for_device
from hamdam.kernels.ops import Ops
from hamdam.kernels.reference import Reference
from hamdam.kernels.triton.ops import TritonOps


def _module(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"contract_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTRACT = _module(Path(__file__).parent.parent / "test_ops.py")
dtype = CONTRACT.dtype
make_step = CONTRACT.make_step


@pytest.fixture
def ops() -> Ops:
    return TritonOps()


def _fewer(test: Callable[..., None], argument: str, values: list[int]) -> Callable[..., None]:
    """`test` with only these values of one of its parameters."""
    test.pytestmark = [mark for mark in test.pytestmark if mark.args[0] != argument]
    return pytest.mark.parametrize(argument, values)(test)


for name, test in vars(CONTRACT).items():
    if name.startswith("test_") and name != "test_the_cpu_has_its_own_implementation":
        globals()[name] = test
_fewer(CONTRACT.test_attention_of_any_mix_of_rows_is_that_of_each_alone, "seed", [0, 1, 2, 3])
_fewer(CONTRACT.test_linear_takes_packed_and_plain_weights, "tokens", [1, 17])


def test_a_gpu_gets_this_implementation() -> None:
    assert isinstance(for_device(torch.device("cuda")), TritonOps)


def test_norm_turn_and_store_in_one_are_the_same_as_one_after_another(ops: TritonOps, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    step = make_step(ops, [3, 1], [20, 7], dtype=dtype)
    apart, plain = step.cache.clone(), Reference()
    qkv = torch.randn(4, 6 + 2 + 2, 16, dtype=dtype)
    query, key, value = qkv.split((6, 2, 2), 1)
    norms = torch.rand(16, dtype=dtype), torch.rand(16, dtype=dtype), 1e-5
    angles = torch.rand(4, 1, 8) * 100
    cosine, sine = torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
    turned = ops.turn_and_store(query, key, value, cosine, sine, step.cache, 1, step.rows, norms=norms)
    query, key = (plain.rms_norm(x, norm, norms[2]) for x, norm in zip((query, key), norms[:2], strict=True))
    for x in (query, key):
        plain.rotary(x, cosine, sine)
    ops.store_kv(key, value, apart, 1, step.rows)
    tolerance = 2 * CONTRACT.TOLERANCE[dtype]  # of bfloat16 what is one after another rounds in between
    torch.testing.assert_close(turned, query, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(step.cache, apart, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_blocks_of_8_bits_are_copied_with_their_scales(ops: TritonOps, kv_dtype: torch.dtype) -> None:
    cache = ops.new_kv_cache(2, 3, 16, 2, 64, dtype=kv_dtype, device=torch.device("cpu"))
    cache.view(torch.uint8).random_(0, 256)
    first = cache[:, 0].view(torch.uint8).clone()
    ops.copy_blocks(cache, [(0, 1), (1, 2)])
    assert all(torch.equal(cache[:, block].view(torch.uint8), first) for block in range(3))


def test_an_invariant_step_attends_alike(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ops = TritonOps(invariant=True)
    step = make_step(ops, [1, 9], [40, 30], dtype=dtype)
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(1, step.query)
    CONTRACT.assert_close(found, CONTRACT.attention_of(step, scale=0.3), dtype)
    first = replace(step.rows, query_starts=step.rows.query_starts[:2], context_lengths=step.rows.context_lengths[:1])
    alone = ops.paged_attention(step.cache, first, scale=0.3)(1, step.query[:1])
    assert torch.equal(alone, found[:1])


def test_a_row_is_sampled_by_its_settings(ops: TritonOps) -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().expand(3, -1)

    def each(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    top_k, uniform = torch.tensor([0, 0, 2]), each(0.9, 0.05, 0.4)
    found = ops.sample(logits, each(0, 1, 1), top_k, each(1, 1, 1), each(0, 0, 0), uniform)
    assert found.tolist() == [3, 0, 2]
