"""Assigning weights: each parameter exactly once, or a line that says which names do not fit."""
from collections.abc import Iterable

import pytest
import torch

from hamdam.engine.errors import ModelError
from hamdam.engine.models.weights import LISTED, Packing, Piece, Source, assign, emptied
from hamdam.kernels.grouped import Grouped, Ints, Scales, Stacked
from hamdam.kernels.quantized import W4A16, quantise_bytes, quantise_int4


class AsTheyAre:
    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight


def put(parameters: dict[str, torch.Tensor], tensors: Iterable[tuple[str, Source]]) -> Packing:
    return assign(parameters, tensors, AsTheyAre())


def parameters(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((2, 3), torch.nan) for name in names}


def test_values_are_copied_and_converted() -> None:
    own = parameters("a", "b") | {"c": torch.empty(4, dtype=torch.bfloat16)}
    put(own, [("c", torch.ones(4)), ("a", torch.zeros(2, 3)), ("b", torch.ones(2, 3, dtype=torch.float16))])
    assert [float(own[name].sum()) for name in "abc"] == [0, 6, 4]


def test_parts_of_a_fused_matrix_are_parameters_too() -> None:
    fused = torch.full((5, 2), torch.nan)
    put(dict(zip("qk", fused.split((3, 2)), strict=True)), [("k", torch.ones(2, 2)), ("q", torch.zeros(3, 2))])
    assert fused[:, 0].tolist() == [0, 0, 0, 1, 1]


def test_f02_missing_and_unexpected_names_are_listed() -> None:
    with pytest.raises(ModelError, match=r"missing: b; unexpected: x, y$"):
        put(parameters("a", "b"), [(name, torch.zeros(2, 3)) for name in "axy"])


def test_f02_a_long_list_is_cut_to_one_line() -> None:
    names = [f"layer.{i}" for i in range(LISTED + 7)]
    with pytest.raises(ModelError, match=r"layer\.4 and 7 more$"):
        put(parameters(*names), [])


def test_f02_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(ModelError, match="tensor a is in the checkpoint twice"):
        put(parameters("a"), [("a", torch.zeros(2, 3)), ("a", torch.ones(2, 3))])


@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (3,), (2, 3, 1)])
def test_f02_a_shape_that_differs_is_refused_and_never_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"tensor a has the shape .*; the configuration asks for \[2, 3\]"):
        put(parameters("a"), [("a", torch.zeros(shape))])


def test_a_tensor_may_come_in_pieces_and_one_that_lacks_the_last_is_missing() -> None:
    own = parameters("a")
    pieces = [("a", Piece(row, torch.full((1, 3), float(row)), (2, 3))) for row in (0, 1)]
    put(own, pieces)
    assert own["a"][:, 0].tolist() == [0, 1]
    with pytest.raises(ModelError, match=r"missing: a$"):
        put(parameters("a"), pieces[:1])
    with pytest.raises(ModelError, match="tensor a is in the checkpoint twice"):
        put(parameters("a"), [pieces[0], pieces[0]])


class Doubling:
    """Packs a matrix as one that is twice as large in its numbers."""

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


def fused(*counts: int, width: int = 32) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    whole = torch.empty(sum(counts), width)
    return whole, {f"{name}_proj.weight": part for name, part in zip("qkv", whole.split(counts), strict=False)}


def test_parts_that_all_come_quantised_stay_so_as_one_and_take_no_other_memory() -> None:
    torch.manual_seed(0)
    whole, parts = fused(3, 5)
    emptied(parts)
    quantised = {name: quantise_int4(torch.randn(part.shape), 32) for name, part in parts.items()}
    kept = assign(parts, quantised.items(), Doubling()).pack(whole)
    assert isinstance(kept, W4A16)
    assert torch.equal(kept.dequantise(), torch.cat([one.dequantise() for one in quantised.values()]))
    assert whole.untyped_storage().nbytes() == 0


def test_parts_of_different_kinds_become_plain_numbers() -> None:
    torch.manual_seed(0)
    whole, parts = fused(2, 3, 4)
    emptied(parts)
    plain, four = torch.randn(2, 32), quantise_int4(torch.randn(3, 32), 32)
    eight = quantise_bytes(torch.randn(4, 32), torch.int8).for_floats()
    packed = assign(parts, [("q_proj.weight", plain), ("v_proj.weight", eight), ("k_proj.weight", four)], Doubling())
    packed = packed.pack(whole)
    assert torch.equal(packed, 2 * torch.cat((plain, four.dequantise(), eight.dequantise())))


def held(rows: int) -> Grouped:
    codes = Ints.packed(torch.randint(0, 16, (rows, 32), dtype=torch.uint8), 4)
    return Grouped(codes, Scales(torch.randn(rows, 2)), zeros=8)


def test_parts_that_stay_as_they_are_stored_lie_one_above_the_other() -> None:
    whole, parts = fused(2, 3, 4)
    emptied(parts)
    matrices = [held(len(part)) for part in parts.values()]
    pieces = [
        (name, Piece(first, one.rows(first, first + 2), one.shape))
        for name, one in zip(parts, matrices, strict=True) for first in range(0, one.shape[0], 2)
    ]  # fmt: skip
    kept = put(parts, pieces).pack(whole)
    assert isinstance(kept, Stacked) and kept.shape == (9, 32) and kept.nbytes == 9 * (16 + 8)
    assert torch.equal(kept.dequantise(), torch.cat([one.dequantise() for one in matrices]))
    assert whole.untyped_storage().nbytes() == 0


def test_a_matrix_of_which_rows_are_taken_stays_as_it_is_stored_and_is_never_packed() -> None:
    embedding, other = torch.empty(4, 32), torch.ones(4, 32)
    one = held(4)
    packing = put({"model.embed_tokens.weight": embedding}, [("model.embed_tokens.weight", Piece(0, one, (4, 32)))])
    kept = packing.looked_up(embedding)
    assert torch.equal(kept.take(torch.tensor([2, 0])).dequantise(), one.dequantise()[[2, 0]])
    assert packing.looked_up(other) is other


@pytest.mark.parametrize("last", ["plain", "four", "held"])
def test_beside_what_differs_rows_as_they_are_stored_become_plain(last: str) -> None:
    whole, parts = fused(2, 3)
    first, second = held(2), quantise_int4(torch.randn(3, 32), 32)
    floats = second.dequantise()
    pair = {"q_proj.weight": Piece(0, first, (2, 32)), "k_proj.weight": Piece(0, second, (3, 32))}
    if last == "plain":
        pair["k_proj.weight"] = Piece(0, floats, (3, 32))
    order = reversed(pair.items()) if last == "held" else pair.items()
    assert put(parts, order).pack(whole) is whole
    assert torch.equal(whole, torch.cat((first.dequantise(), floats)))


def test_a_quantised_matrix_of_another_shape_is_refused() -> None:
    _, parts = fused(3)
    with pytest.raises(ModelError, match=r"q_proj\.weight has the shape \[4, 32\]; the .* asks for \[3, 32\]"):
        put(parts, [("q_proj.weight", quantise_int4(torch.randn(4, 32), 32))])


def test_a_matrix_is_packed_when_its_last_part_is_there_and_its_plain_numbers_are_freed() -> None:
    whole, parts = fused(2, 3)
    other = torch.empty(4, 32)
    parts["down_proj.weight"] = other
    emptied(parts)
    held = []

    def tensors() -> Iterable[tuple[str, torch.Tensor]]:
        for name in ("k_proj.weight", "q_proj.weight", "down_proj.weight"):
            yield name, torch.ones(parts[name].shape)
            held.append([one.untyped_storage().nbytes() for one in (whole, other)])

    packing = assign(parts, tensors(), Doubling())
    assert held == [[5 * 32 * 4, 0], [0, 0], [0, 0]]
    assert torch.equal(packing.pack(whole), torch.full((5, 32), 2.0))
    assert torch.equal(packing.pack(other), torch.full((4, 32), 2.0))
