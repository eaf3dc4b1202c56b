"""Assigning weights: each parameter exactly once, or a line that says which names do not fit."""
import pytest
import torch

from hamdam.engine.errors import ModelError
from hamdam.engine.models.weights import LISTED, assign


def parameters(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((2, 3), torch.nan) for name in names}


def test_values_are_copied_and_converted() -> None:
    own = parameters("a", "b") | {"c": torch.empty(4, dtype=torch.bfloat16)}
    assign(own, [("c", torch.ones(4)), ("a", torch.zeros(2, 3)), ("b", torch.ones(2, 3, dtype=torch.float16))])
    assert [float(own[name].sum()) for name in "abc"] == [0, 6, 4]


def test_parts_of_a_fused_matrix_are_parameters_too() -> None:
    fused = torch.full((5, 2), torch.nan)
    assign(dict(zip("qk", fused.split((3, 2)), strict=True)), [("k", torch.ones(2, 2)), ("q", torch.zeros(3, 2))])
    assert fused[:, 0].tolist() == [0, 0, 0, 1, 1]


def test_f02_missing_and_unexpected_names_are_listed() -> None:
    with pytest.raises(ModelError, match=r"missing: b; unexpected: x, y$"):
        assign(parameters("a", "b"), [(name, torch.zeros(2, 3)) for name in "axy"])


def test_f02_a_long_list_is_cut_to_one_line() -> None:
    names = [f"layer.{i}" for i in range(LISTED + 7)]
    with pytest.raises(ModelError, match=r"layer\.4 and 7 more$"):
        assign(parameters(*names), [])


def test_f02_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(ModelError, match="tensor a is in the checkpoint twice"):
        assign(parameters("a"), [("a", torch.zeros(2, 3)), ("a", torch.ones(2, 3))])


@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (3,), (2, 3, 1)])
def test_f02_a_shape_that_differs_is_refused_and_never_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"tensor a has the shape .*; the configuration asks for \[2, 3\]"):
        assign(parameters("a"), [("a", torch.zeros(shape))])
