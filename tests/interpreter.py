"""interpreter: Triton's kernels on a machine without a GPU, for conftest files. Not a test."""
import os
import sys

import torch


def interpret_triton() -> None:
    """Triton reads this when it is imported and when a kernel is defined. Had someone imported it before, its own
    functions were made for a compiler, and the interpreter could not call them: then it is imported anew, once."""
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        return
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [name for name in sys.modules if f"{name}.".startswith(("triton.", "hamdam.kernels.triton."))]:
        if not name.startswith("triton._C"):  # a native library cannot be loaded twice
            del sys.modules[name]
