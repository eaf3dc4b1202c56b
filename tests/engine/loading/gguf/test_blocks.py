"""GGUF's block formats, against golden values and against the format's own Python package on random bytes."""
import struct

import gguf
import numpy as np
import pytest

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.gguf import block_format
from hamdam.engine.loading.gguf.moved import BITS, moved

Q = gguf.GGMLQuantizationType
KINDS = [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K,
         Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4]  # fmt: skip

HALF, QUARTER = struct.pack("<e", 0.5), struct.pack("<e", 0.25)
QS16 = bytes(i | ((15 - i) << 4) for i in range(16))
QS128 = bytes((i % 16) | (((3 * i) % 16) << 4) for i in range(128))
HIGH = struct.pack("<I", 0xAAAA5555)
SCALES = bytes.fromhex("4182C3044506C78821436587")
MINUS_ONE = struct.pack("<e", -1.0)


def dequantise(kind: int, block: bytes) -> list[float]:
    form = block_format(kind)
    assert len(block) == form.nbytes
    assert form.dequantise is not None
    return form.dequantise(np.frombuffer(block, np.uint8)[None])[0].tolist()


def starts(values: list[float], group: int) -> list[tuple[float, float]]:
    return [(values[at], values[at + 1]) for at in range(0, len(values), group)]


def test_f06_q4_0_has_the_golden_values() -> None:
    rising = [-4.0 + 0.5 * i for i in range(16)]
    assert dequantise(Q.Q4_0, HALF + QS16) == rising + rising[::-1]


def test_f06_q4_1_has_the_golden_values() -> None:
    rising = [-1.0 + 0.5 * i for i in range(16)]
    assert dequantise(Q.Q4_1, HALF + MINUS_ONE + QS16) == rising + rising[::-1]


def test_f06_q5_0_has_the_golden_values() -> None:
    values = dequantise(Q.Q5_0, HALF + HIGH + QS16)
    assert (values[:4], values[-4:]) == ([0.0, -7.5, 1.0, -6.5], [-6.5, 1.0, -7.5, 0.0])


def test_f06_q5_1_has_the_golden_values() -> None:
    values = dequantise(Q.Q5_1, HALF + MINUS_ONE + HIGH + QS16)
    assert (values[:4], values[-4:]) == ([7.0, -0.5, 8.0, 0.5], [0.5, 8.0, -0.5, 7.0])


def test_f06_q8_0_has_the_golden_values() -> None:
    block = QUARTER + struct.pack("<32b", *(8 * i - 128 for i in range(32)))
    assert dequantise(Q.Q8_0, block) == [-32.0 + 2 * i for i in range(32)]


def test_f06_q4_k_has_the_golden_values() -> None:
    values = dequantise(Q.Q4_K, HALF + QUARTER + SCALES + QS128)
    assert starts(values, 32) == [(-1.25, -0.75), (-1.5, 1.5), (-1.75, -0.25), (-2.0, 4.0),
                                  (-4.5, 4.0), (-1.0, 51.5), (-13.5, 13.0), (-10.0, 0.5)]  # fmt: skip
    assert sum(values) == 13504.0


def test_f06_q5_k_has_the_golden_values() -> None:
    high = bytes((37 * i) & 255 for i in range(32))
    values = dequantise(Q.Q5_K, HALF + QUARTER + SCALES + high + QS128)
    assert starts(values, 32) == [(-1.25, 7.25), (-1.5, 1.5), (-1.75, 23.75), (-2.0, 4.0),
                                  (-4.5, 4.0), (-1.0, 331.5), (-13.5, 13.0), (-10.0, 0.5)]  # fmt: skip
    assert sum(values) == 28472.0


def test_f06_q6_k_has_the_golden_values() -> None:
    high = bytes((37 * i) & 255 for i in range(64))
    scales = struct.pack("<16b", *(i - 8 for i in range(16)))
    values = dequantise(Q.Q6_K, QS128 + high + scales + HALF)
    assert starts(values, 16) == [
        (128, 60), (112, 52.5), (96, 45), (80, 37.5), (64, -6), (24, -28.5), (32, 29), (8, 6.5),
        (0, 0), (-16, -7.5), (-32, -15), (-48, -22.5), (0, -58), (40, -32.5), (0, 57), (56, -101.5),
    ]  # fmt: skip
    assert sum(values) == 336.0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_f06_random_blocks_give_the_values_of_the_formats_own_package(kind: gguf.GGMLQuantizationType) -> None:
    form = block_format(kind)
    assert (form.name, (form.elements, form.nbytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])
    assert form.dequantise is not None
    blocks = np.random.default_rng(kind).integers(0, 256, (333, form.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random bytes make scales that are no numbers, too
        ours, theirs = form.dequantise(blocks), gguf.quants.dequantize(blocks, kind)
    assert ours.dtype == np.float32
    assert np.array_equal(ours.ravel(), theirs.ravel(), equal_nan=True)


@pytest.mark.parametrize("name", BITS)
def test_blocks_that_are_moved_keep_their_numbers(name: str) -> None:
    """Only Q4_K's scales and minima are rounded, which are at most 63 here: a scale counts 15 times, a minimum once."""
    kind = Q[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(kind)
    blocks = random.integers(0, 256, (6, 2, size), dtype=np.uint8)
    for at in range(0, 4 if name in ("Q4_1", "Q4_K") else 2, 2):
        halves = random.uniform(0.5, 1, (6, 2)).astype(np.float16)
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    form, made = moved(name, blocks)
    assert form in ("Q4_0", "Q4_1", "Q8_0") and made.shape[:2] == (6, 2 * elements // 32)
    assert BITS[name] == (8 if form == "Q8_0" else 4)
    found = gguf.quants.dequantize(made.reshape(6, -1), Q[form])
    right = gguf.quants.dequantize(blocks.reshape(6, -1), kind)
    most = 63 * (15 + 1) * 2.0**-12 if name == "Q4_K" else 0
    np.testing.assert_allclose(found, right, rtol=0, atol=most)


UNKNOWN = [(999, "type 999 is"), (Q.IQ2_XXS, "IQ2_XXS"), (Q.NVFP4, "NVFP4"), (Q.TQ1_0, "TQ1_0")]


@pytest.mark.parametrize(("kind", "words"), UNKNOWN)
def test_f06_an_unknown_type_is_refused_by_its_name(kind: int, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        block_format(kind)
