"""Makes `hamdam` importable from a bare checkout, where nothing was installed (a GPU machine, a fresh clone)."""
import hashlib
import os
import sys
import types
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if find_spec("hamdam") is None:
    hamdam = types.ModuleType("hamdam")
    hamdam.__path__ = [str(ROOT)]
    sys.modules["hamdam"] = hamdam

# numba looks for changes only in the file of the function that it keeps, and this one calls what stands in others.
_sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((ROOT / "kernels/cpu").glob("*.py"))))
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cache" / f"compiled-{_sources.hexdigest()[:16]}"))

NEEDED = {  # a GPU machine has torch, tokenizers, safetensors and pytest; what else these need it may not have
    "numba": (
        "kernels/cpu",
        "engine/execution/test_changing_runner.py",
        "engine/execution/test_masks.py",
        "engine/execution/test_native_accuracy.py",
        "engine/execution/test_native_invariance.py",
        "engine/execution/test_native_logprobs.py",
        "engine/execution/test_native_opening.py",
        "engine/execution/test_native_runner.py",
        "engine/execution/test_packed_weights.py",
        "engine/execution/test_quantised_checkpoints.py",
        "engine/execution/test_runners.py",
    ),
    "gguf": (
        "engine/loading/test_declared.py",
        "engine/loading/gguf/test_blocks.py",
        "engine/loading/gguf/test_checkpoint.py",
        "engine/loading/gguf/test_sentence_piece.py",
        "engine/models/test_gguf_families.py",
        "engine/models/test_gguf_twins.py",
        "engine/models/test_transformer.py",
        "engine/test_model_check.py",
    ),
    "llguidance": (
        "engine/grammar", "engine/execution/test_masks.py", "engine/test_opening.py", "server/test_must_call.py",
        "server/test_strict_tools.py",
    ),
    "transformers": (
        "engine/loading/gguf/test_tokenizer.py",
        "engine/loading/test_mxfp4_experts.py",
        "engine/models/test_families.py",
        "engine/models/test_gguf_families.py",
        "engine/models/test_transformer.py",
    ),
    "platformdirs": (
        "engine/loading/gguf/test_tokenizer.py",
        "engine/text/test_default_model_text.py",
        "engine/execution/test_golden.py",
        "engine/execution/test_native_accuracy.py",
        "engine/execution/test_native_invariance.py",
    ),
}
collect_ignore = [file for module, files in NEEDED.items() if find_spec(module) is None for file in files]


def pytest_collection_modifyitems(items):
    """The browser last: while it is open its driver keeps an event loop running, beside which no other may start."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
