"""On a GPU the kernels are tested as they run, elsewhere under Triton's interpreter. No test is here."""
import os
import sys
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
elif torch.cuda.is_available():
    collect_ignore = ["test_triton_ops.py"]  # its tests are those of every implementation, on the CPU
else:
    # Triton reads this when it is imported and when a kernel is defined. Had someone imported it before, its own
    # functions were made for a compiler, and the interpreter could not call them: it has to be imported anew.
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [name for name in sys.modules if f"{name}.".startswith(("triton.", "hamdam.kernels.triton."))]:
        if not name.startswith("triton._C"):  # a native library cannot be loaded twice
            del sys.modules[name]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
