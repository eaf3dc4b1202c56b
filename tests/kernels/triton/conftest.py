"""On a GPU the kernels are tested as they run, elsewhere under Triton's interpreter. No test is here."""
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from interpreter import interpret_triton

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    interpret_triton()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every run tests the same numbers: bounds of rounding are either too tight or not."""
    torch.manual_seed(0)


@pytest.fixture
def new_memory_holds_nan() -> Iterator[None]:
    """So that an element that a kernel forgets is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
