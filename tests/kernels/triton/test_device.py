"""for_device on a machine that has Triton: what a GPU gets, and where compiled kernels are kept."""
from pathlib import Path

import pytest
import torch
import triton

from hamdam.kernels.device import for_device
from hamdam.kernels.triton.ops import TritonOps

GPU = torch.device("cuda")


@pytest.mark.parametrize("invariant", [False, True])
def test_a_gpu_gets_the_triton_kernels_invariant_where_that_is_asked(invariant: bool) -> None:
    ops = for_device(GPU, invariant=invariant)
    assert isinstance(ops, TritonOps)
    assert ops.invariant == invariant


def test_compiled_kernels_are_kept_where_all_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = triton.knobs.cache.dir
    monkeypatch.setattr(triton.knobs.cache, "dir", before)  # put back at the end
    for_device(GPU)
    assert triton.knobs.cache.dir == before
    for_device(GPU, cache=tmp_path)
    assert triton.knobs.cache.dir == str(tmp_path)
