"""For conftest files: tests that compute on one thread. Two wait for each other after every operation, which costs more
than it gives on tiny models, and very much more where something else wants one of the cores."""
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
