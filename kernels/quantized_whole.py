"""Whole quantised matrices, out of floats as they are loaded and out of parts. Their forms are quantized.py's."""
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from .quantized import FP8_BLOCK, ROWS_AT_ONCE, RUN, W4A16, W8A16, quantise_bytes, quantise_int4
from .unpacked import Mxfp4

KINDS = ("int8", "int4", "fp8")
Form = W4A16 | W8A16 | Mxfp4


def rounded(weight: Tensor, kind: str) -> W4A16 | W8A16 | None:
    """[out, in] to one of KINDS, for rows that stay floats: 8 bits with a scale an output, or 4 bits with a scale and a
    zero for each RUN inputs. None where in is no multiple of RUN."""
    if weight.shape[1] % RUN:
        return None
    step = max(1, ROWS_AT_ONCE // weight.shape[1])
    return stacked(len(weight), (_rounded(weight[first : first + step], kind) for first in range(0, len(weight), step)))


def _rounded(weight: Tensor, kind: str) -> W4A16 | W8A16:
    if kind == "int4":
        return quantise_int4(weight, RUN, symmetric=False)
    return quantise_bytes(weight, torch.int8 if kind == "int8" else torch.float8_e4m3fn).for_floats()


def stacked(outputs: int, parts: Iterable[W4A16 | W8A16]) -> W4A16 | W8A16 | None:
    """Parts of so many outputs together, one above the other, nothing rounded; None where one form cannot hold them."""
    whole, first = Stack(outputs), 0
    for part in parts:
        if not whole.put(first, part):
            return None
        first += part.shape[0]
    assert not isinstance(whole.matrix, Mxfp4)
    return whole.matrix


class Stack:
    """A matrix whose rows come in parts, in any order. Its memory is taken once, and so it is never there twice.

    matrix: what is there so far, None at first; rows that have not come hold anything.
    """

    def __init__(self, outputs: int) -> None:
        self.matrix: Form | None = None
        self._outputs = outputs

    def put(self, first: int, part: Form) -> bool:
        """Rows from `first` on. False, and nothing is changed, where one form cannot hold them beside the others."""
        if isinstance(part, Mxfp4):
            if self.matrix is None:
                wide = (part.codes.new_empty(self._outputs, *x.shape[1:]) for x in (part.codes, part.scales))
                self.matrix = Mxfp4(*wide)
            elif not isinstance(self.matrix, Mxfp4) or self.matrix.shape[1] != part.shape[1]:
                return False
            for whole, own in ((self.matrix.codes, part.codes), (self.matrix.scales, part.scales)):
                whole[first : first + len(own)] = own
            return True
        if isinstance(part, W4A16):
            if self.matrix is None:
                self.matrix = self._like_four(part)
            elif not isinstance(self.matrix, W4A16) or not _alike(self.matrix, part):
                return False
            self.matrix = _with_four(self.matrix, first, part)
            return True
        if part.scales.dim() == 2 and first % FP8_BLOCK:
            return False
        if self.matrix is None:
            self.matrix = self._like_eight(part)
        elif not isinstance(self.matrix, W8A16) or not _alike_eight(self.matrix, part):
            return False
        _put_eight(self.matrix, first, part)
        return True

    def _like_four(self, part: W4A16) -> W4A16:
        packed = part.packed.new_empty(self._outputs, part.packed.shape[1])
        scales = part.scales.new_empty(len(part.scales), self._outputs)
        zeros = None if part.zeros is None else part.zeros.new_empty(scales.shape)
        return W4A16(packed, scales, zeros, part.permutation)

    def _like_eight(self, part: W8A16) -> W8A16:
        packed = part.packed.new_empty(self._outputs, part.packed.shape[1])
        shape = [self._outputs]
        if part.scales.dim() == 2:
            shape = [-(-self._outputs // FP8_BLOCK), part.scales.shape[1]]
        return W8A16(packed, part.scales.new_empty(shape), part.dtype)


def _alike(whole: W4A16, part: W4A16) -> bool:
    if whole.packed.shape[1] != part.packed.shape[1] or whole.group != part.group or _added(whole) != _added(part):
        return False
    if whole.permutation is None or part.permutation is None:
        return whole.permutation is part.permutation
    return torch.equal(whole.permutation, part.permutation)


def _added(matrix: W4A16) -> bool:
    """Whether its zeros are numbers that are added."""
    return matrix.zeros is not None and matrix.zeros.dtype != torch.uint8


def _with_four(whole: W4A16, first: int, part: W4A16) -> W4A16:
    if whole.scales.dtype != part.scales.dtype:  # one of both has what no float16 holds
        added = whole.zeros.float() if _added(whole) and whole.zeros is not None else whole.zeros
        whole = replace(whole, scales=whole.scales.float(), zeros=added)
    if whole.zeros is None and part.zeros is not None:
        whole = replace(whole, zeros=torch.full_like(whole.scales, 8, dtype=torch.uint8))
    end = first + part.shape[0]
    whole.packed[first:end] = part.packed
    whole.scales[:, first:end] = part.scales
    if whole.zeros is not None:
        whole.zeros[:, first:end] = 8 if part.zeros is None else part.zeros
    return whole


def _alike_eight(whole: W8A16, part: W8A16) -> bool:
    alike = whole.packed.shape[1] == part.packed.shape[1] and whole.dtype == part.dtype
    return alike and (whole.scales.dim() == 2) == (part.scales.dim() == 2)


def _put_eight(whole: W8A16, first: int, part: W8A16) -> None:
    end = first + part.shape[0]
    whole.packed[first:end] = part.packed
    if part.scales.dim() == 2:
        first //= FP8_BLOCK
        end = first + len(part.scales)
    whole.scales[first:end] = part.scales
