"""lanes and sums: each operation on 16 numbers, in the processor's own instruction and put together of others."""
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import portable_answers
import pytest
from numba import njit
from numpy.typing import NDArray
from packed_numbers import address, from_bf16

from hamdam.kernels.cpu import lanes, sums
from hamdam.kernels.cpu.lanes import FloatLanes, IntLanes, load, load_ints, operation, store, store_ints

X86 = platform.machine() in ("x86_64", "AMD64")
OLDER = "x86-64-v3" if X86 else "generic"  # a processor without these products
AVX2 = "+avx2,+fma,+f16c"


def rebuilt(monkeypatch: pytest.MonkeyPatch, made: Any, result: Any, *arguments: Any) -> Any:
    """The operation as it is where the processor has no instruction for it."""
    for name in ("HAS_INT8_DOT", "HAS_BF16_DOT"):
        monkeypatch.setattr(sums, name, False)
    return operation(result, *arguments)(made.emit)


def bytes_dotted(dot: Any) -> Any:
    @njit
    def run(total: int, x: int, y: int, out: int) -> None:
        store_ints(out, dot(load_ints(total), load_ints(x), load_ints(y)))

    return run


def pairs_dotted(dot: Any) -> Any:
    @njit
    def run(total: int, x: int, y: int, out: int) -> None:
        store(out, dot(load(total), load_ints(x), load_ints(y)))

    return run


def applied(run: Any, total: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    out = np.zeros(16, total.dtype)
    run(address(total), address(x), address(y), address(out))
    return out


def test_bytes_are_multiplied_alike_with_and_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    native = bytes_dotted(sums.dot_bytes)
    edges = np.array([0, 1, 127, 128, 254, 255], np.uint8)
    random = np.random.default_rng(0)
    cases = []
    for number in range(50):
        pool = edges if number % 2 else np.arange(256, dtype=np.uint8)
        x, y = random.choice(pool, (2, 64))
        total = random.integers(-(2**28), 2**28, 16, np.int32)
        right = total + (x.astype(np.int32) * y.view(np.int8)).reshape(16, 4).sum(1)
        assert np.array_equal(applied(native, total, x, y), right)
        cases.append((total, x, y, right))
    general = bytes_dotted(rebuilt(monkeypatch, sums.dot_bytes, IntLanes, IntLanes, IntLanes, IntLanes))
    for total, x, y, right in cases:
        assert np.array_equal(applied(general, total, x, y), right)


def test_pairs_of_bfloat16_are_multiplied_alike_with_and_without_the_instruction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exactly where all sums are exact; else to the rounding of float32, whose order a processor may choose."""
    native = pairs_dotted(sums.dot_bf16)
    random = np.random.default_rng(1)
    cases = []
    for number in range(50):
        if number % 2:
            x, y = (random.integers(-128, 129, (2, 32)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            total = random.integers(-1000, 1000, 16).astype(np.float32)
        else:
            x, y = (random.standard_normal((2, 32)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            total = random.standard_normal(16).astype(np.float32)
        products = from_bf16(x).astype(np.float64) * from_bf16(y)
        right = total + products.reshape(16, 2).sum(1)
        added = np.abs(total) + np.abs(products).reshape(16, 2).sum(1)
        cases.append((total, x, y, right, 0 if number % 2 else 2e-7 * added))
    general = pairs_dotted(rebuilt(monkeypatch, sums.dot_bf16, FloatLanes, FloatLanes, IntLanes, IntLanes))
    for total, x, y, right, allowed in cases:
        for run in (native, general):
            assert np.all(np.abs(applied(run, total, x, y) - right) <= allowed)


@pytest.mark.parametrize("at", [0, 1, 31])
@pytest.mark.parametrize("poison", [0x7FC0, 0x7F80, 0xFF80])
def test_what_is_no_number_is_none_in_either_product(monkeypatch: pytest.MonkeyPatch, poison: int, at: int) -> None:
    x = np.full(32, 0x3F80, np.uint16)
    y = np.zeros(32, np.uint16)  # infinity times 0, too
    x[at] = poison
    total = np.zeros(16, np.float32)
    native = applied(pairs_dotted(sums.dot_bf16), total, x, y)
    general = applied(
        pairs_dotted(rebuilt(monkeypatch, sums.dot_bf16, FloatLanes, FloatLanes, IntLanes, IntLanes)), total, x, y
    )
    for found in (native, general):
        assert np.isnan(found[at // 2])
        assert np.isfinite(found).sum() == 15


@njit
def exponential(x: int, out: int) -> None:
    store(out, lanes.exp(load(x)))


@njit
def summed(x: int) -> float:
    return sums.total(load(x))


@njit
def most(x: int) -> float:
    return sums.largest(load(x))


@pytest.mark.parametrize(("largest", "error"), [(1, 2e-7), (16, 4e-7), (87, 1.4e-6)])
def test_exp_is_nearly_that_of_float64_and_of_0_it_is_1(largest: float, error: float) -> None:
    x = np.concatenate((np.linspace(-largest, largest, 20_000), [0.0] * 16)).astype(np.float32)
    found = np.empty_like(x)
    for start in range(0, len(x), 16):
        exponential(address(x[start : start + 16]), address(found[start : start + 16]))
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=error)
    assert np.all(found[-16:] == 1)


def test_exp_far_out_is_0_or_its_largest_and_not_a_number_stays_none() -> None:
    x = np.array([-np.inf, -1e30, -104, -87.5, 88.5, 1e30, np.inf, np.nan] * 2, np.float32)
    found = np.empty(16, np.float32)
    exponential(address(x), address(found))
    assert found[:4].tolist() == [0] * 4
    np.testing.assert_allclose(found[4:7], np.exp(88.0), rtol=1e-5)
    assert np.isnan(found[7])


def test_a_sum_takes_halves_upon_each_other() -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        x = (random.standard_normal(16) * 10.0 ** random.integers(-6, 7, 16)).astype(np.float32)
        right = x
        while len(right) > 1:
            right = right[: len(right) // 2] + right[len(right) // 2 :]
        assert summed(address(x)) == right[0]
        assert most(address(x)) == x.max()


@pytest.mark.parametrize("features", ["", AVX2] if X86 else [""])
def test_a_processor_without_these_products_computes_the_same(tmp_path: Path, features: str) -> None:
    """In a process of its own, since numba compiles for one processor. What is exact here is exact on any."""
    file = tmp_path / "answers.npz"
    older = {"NUMBA_CPU_NAME": OLDER, "NUMBA_CPU_FEATURES": features}
    subprocess.run([sys.executable, portable_answers.__file__, str(file)], env=os.environ | older, check=True)
    own, found = portable_answers.answers(), dict(np.load(file))
    assert found.keys() == own.keys()
    assert found.pop("instructions").tolist() == [False, False, bool(features)]
    own.pop("instructions")
    np.testing.assert_allclose(found.pop("pairs"), own.pop("pairs"), rtol=1e-6, atol=1e-6)
    for name, right in own.items():
        assert np.array_equal(found[name], right), name
