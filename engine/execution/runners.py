"""open_runner: which runner computes a model here, by its dtype and by what this machine has. It computes nothing.

  int8      on the CPU: native code, weights as 4 or 8 bits, activations as 8 bits in groups of 32, or as 16
            in the few groups that hold what is far larger than the rest
  int16     on the CPU: the same with all activations as 16 bits: down to half as fast, and float32's own answer
  float32, bfloat16    PyTorch, on either device, with weights of that dtype (holding.py)
  auto      on the CPU int8 where it can be had, else float32; on a GPU bfloat16
"""
import logging
import os
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ..config import EngineConfig
from ..errors import ModelError
from ..loading.checkpoint import Checkpoint
from ..models.config import ModelConfig
from ..policy.batch import Runner
from .changing_runner import First
from .kv_cache import NATIVE
from .quality import EXACT_ABOVE

log = logging.getLogger("hamdam.engine")
GPU_NODES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # one of them is there where Linux sees a GPU that computes

OWN_GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def open_runner(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """Raises ModelError where what was asked for cannot be had. Only what is chosen is imported: PyTorch takes most of
    a second and 200 MB, numba is not everywhere.

    `auto` without a cache folder is PyTorch's, since native code would have to be compiled at every start.
    """
    choice = choose(checkpoint.config, config)
    if choice.native:
        return _native(checkpoint, config, choice.dtype)
    if choice.slower is not None:
        log.warning("computing with PyTorch, several times slower than native code: %s", choice.slower)
    from .model_runner import load_runner

    return load_runner(checkpoint, config)


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to compute a model. `slower`: why it is not native code, where that would have been preferred."""

    device: str  # cpu | cuda
    dtype: str
    native: bool = False
    slower: str | None = None


def choose(model: ModelConfig, config: EngineConfig) -> Choice:
    """Raises ModelError where what was asked for cannot be had: a dtype of native code, or to quantize beside it."""
    slower = None
    if config.dtype in EXACT_ABOVE or (config.dtype == "auto" and config.cache is not None):
        slower = no_native(model, config)
        if config.quantize is not None and (slower is None or config.dtype in EXACT_ABOVE):
            raise ModelError(
                f"quantize {config.quantize} is PyTorch's, and native code has weights of 8 bits, or their own 4, "
                "as it is: leave it out, or choose the dtype float32 or bfloat16"
            )
        if slower is None:
            return Choice("cpu", "int8" if config.dtype == "auto" else config.dtype, native=True)
        if config.dtype in EXACT_ABOVE:
            raise ModelError(f"dtype {config.dtype} cannot be had: {slower}")
    if _on_gpu(config):
        return Choice("cuda", "bfloat16" if config.dtype == "auto" else config.dtype)
    return Choice("cpu", "float32" if config.dtype == "auto" else config.dtype, slower=slower)


def _native(checkpoint: Checkpoint, config: EngineConfig, dtype: str) -> Runner:
    from hamdam.kernels.cpu import warm

    if config.cache is not None:  # before anything that is to be compiled is imported
        warm.use(warm.folder_in(config.cache))
    else:
        warm.use_beside()
    from .native_opening import open_native

    def with_pytorch() -> First:
        from .model_runner import load_runner

        return load_runner(checkpoint, replace(config, dtype="bfloat16", device="cpu"))  # KV of the same size

    return open_native(checkpoint, config, with_pytorch, threads=threads_of(config), dtype=dtype)


def threads_of(config: EngineConfig) -> int:
    """Those asked for, else one for each core that this process may use: more wait for each other most of the time."""
    if config.threads is not None:
        return config.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota(cores)))


def _quota(cores: int) -> int:
    """Whole cores of time that a container or service was given, where Linux says so; else `cores`."""
    try:
        group = OWN_GROUP.read_text().rpartition("0::/")[2].strip()
        time, period = (GROUPS / group / "cpu.max").read_text().split()
        return int(time) // int(period)
    except (OSError, ValueError):  # there is no such file, or the time is "max"
        return cores


def no_native(model: ModelConfig, config: EngineConfig) -> str | None:
    """Why native code cannot be had; None where it can."""
    if _on_gpu(config):
        return "it is the CPU's"
    if config.kv_dtype not in ("auto", NATIVE):
        return f"it keeps KV in {NATIVE}, not in {config.kv_dtype}"
    if find_spec("numba") is None:
        return "numba is not installed"
    if model.peculiarities:
        return f"this model has {model.peculiarities[0]}"
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        if getattr(model, name) % 16:
            return f"{name} of this model is {getattr(model, name)}, no multiple of 16"
    try:
        from hamdam.kernels.cpu import warm
    except ImportError as error:  # it may be there and not go with this NumPy, say
        return f"numba cannot be used: {error}"
    return warm.missing()


def _on_gpu(config: EngineConfig) -> bool:
    """Whether a GPU is to compute. PyTorch, which knows, is asked only where there may be one."""
    if config.device != "auto":
        return config.device != "cpu"  # what is neither is refused by PyTorch's runner
    if sys.platform == "linux" and not any(Path(node).exists() for node in GPU_NODES):
        return False
    import torch

    return torch.cuda.is_available()
