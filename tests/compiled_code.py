"""CompiledCode: a cache folder with native code in it, without compiling it again for every test. Not a test."""
import os
import shutil
from pathlib import Path

from hamdam.kernels.cpu import warm
from hamdam.kernels.cpu.step import compile_step


def compiled_in(cache: Path) -> Path:
    """Puts what these tests share there (conftest.py), as an earlier start would have left it but for its mark."""
    compile_step()
    folder = warm.folder_in(cache)
    shutil.copytree(os.environ["NUMBA_CACHE_DIR"], folder)
    return folder
