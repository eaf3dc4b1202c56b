"""What a GPU computes, on a GPU; elsewhere under Triton's interpreter. No test is here."""
from importlib.util import find_spec

import pytest
import torch
from interpreter import interpret_triton
from one_thread import one_thread as one_thread

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    interpret_triton()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
