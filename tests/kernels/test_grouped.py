"""Grouped: exactly the numbers that it stands for, whatever its bits, groups and zeros; products by them."""
import pytest
import torch
import torch.nn.functional as F

from hamdam.kernels import reference
from hamdam.kernels.device import for_device
from hamdam.kernels.grouped import Grouped, Ints, Scales, Stacked
from hamdam.kernels.reference import Reference


def numbers(rows: int, count: int, bits: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(bits)
    return torch.randint(0, 1 << bits, (rows, count), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("count", [96, 37, 1])
@pytest.mark.parametrize("bits", range(1, 9))
def test_whole_numbers_of_any_bits_come_back_and_take_no_more_than_those(bits: int, count: int) -> None:
    right = numbers(5, count, bits)
    packed = Ints.packed(right, bits)
    assert torch.equal(packed.unpacked(), right)
    taken = sum(plane.nbytes for plane in packed.planes)
    assert taken == 5 * count * bits // 8 if count == 96 else taken <= 5 * (count * bits // 8 + 3)


def steps(rows: int, groups: int) -> tuple[Scales, torch.Tensor]:
    """6 bits of each group, less 32, times a float16 for half of them."""
    floats, own = torch.randn(rows, 2).half(), numbers(rows, groups, 6)
    right = (own.float() - 32) * floats.float().repeat_interleave(groups // 2, 1)
    return Scales(floats, Ints.packed(own, 6), 32), right


@pytest.mark.parametrize("kind", ["zero", "zeros", "low", "table", "scattered"])
def test_a_matrix_is_what_its_parts_say(kind: str) -> None:
    torch.manual_seed(0)
    codes = numbers(7, 64, 4)
    scales, wide = steps(7, 4)
    own = torch.arange(64) // 16
    matrix, right = Grouped(Ints.packed(codes, 4), scales, zeros=8), codes.float() - 8
    low = torch.zeros(7, 4)
    if kind == "zeros":
        zeros = torch.randint(0, 17, (7, 4), dtype=torch.int16)
        matrix, right = Grouped(matrix.codes, scales, zeros=zeros), codes.float() - zeros[:, own]
    elif kind == "low":
        low = torch.randn(7, 4)
        matrix, right = Grouped(matrix.codes, scales, Scales(low)), codes.float()
    elif kind == "table":
        table = torch.randn(16)
        matrix, right = Grouped(matrix.codes, scales, table=table), table[codes.int()]
    elif kind == "scattered":
        own = own[torch.randperm(64)]
        matrix = Grouped(matrix.codes, scales, zeros=8, groups=own.int())
    right = right * wide[:, own] + low[:, own]
    assert matrix.shape == (7, 64)
    assert torch.equal(matrix.dequantise(), right)
    assert torch.equal(matrix.rows(2, 99).dequantise(), right[2:])
    assert torch.equal(matrix.take(torch.tensor([6, 0, 6])).dequantise(), right[[6, 0, 6]])
    room = matrix.room(9)
    room.put(2, matrix)
    assert torch.equal(room.rows(2, 9).dequantise(), right)
    assert room.nbytes - (0 if room.groups is None else room.groups.nbytes) == 9 * (64 // 2 + 4 * 6 // 8 + 4) + {
        "zeros": 9 * 4 * 2, "low": 9 * 4 * 4
    }.get(kind, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_multiplied_some_rows_at_a_time_also_one_above_another(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(reference, "IN_CACHE", 1)
    matrix = Grouped(Ints.packed(numbers(300, 64, 5), 5), Scales(torch.randn(300, 2)), zeros=16)
    other = Grouped(Ints.packed(numbers(9, 64, 8), 8), Scales(torch.randn(9, 1) / 16), zeros=128)
    stacked = Stacked((matrix, other))
    x, bias = (torch.randn(shape).to(dtype) for shape in ((7, 64), (309,)))
    for weight in (matrix, stacked):
        own = bias[: weight.shape[0]]
        right = F.linear(x.float(), weight.dequantise(), own.float())
        for ops in (Reference(), for_device(torch.device("cpu"))):
            found = ops.linear(x, weight, own)
            assert found.dtype == dtype
            tolerance = (1e-2, 1e-1) if dtype == torch.bfloat16 else (1e-5, 1e-3)
            torch.testing.assert_close(found.float(), right, rtol=tolerance[0], atol=tolerance[1])
