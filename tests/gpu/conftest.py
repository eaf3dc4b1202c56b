"""What a GPU computes, on a GPU; elsewhere under Triton's interpreter. No test is here."""
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


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """As in tests/engine/execution: on tiny models a second thread costs more than it gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
