"""Makes `hamdam` importable from a bare checkout, where nothing was installed (a GPU machine, a fresh clone)."""
import sys
import types
from importlib.util import find_spec
from pathlib import Path

if find_spec("hamdam") is None:
    hamdam = types.ModuleType("hamdam")
    hamdam.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules["hamdam"] = hamdam

NEEDED = {  # a GPU machine has torch, tokenizers, safetensors and pytest; what else these need it may not have
    "gguf": (
        "engine/loading/test_gguf_blocks.py",
        "engine/loading/test_gguf_checkpoint.py",
        "engine/models/test_llama.py",
    ),
    "transformers": ("engine/loading/test_gguf_tokenizer.py", "engine/models/test_llama.py"),
    "platformdirs": (
        "engine/loading/test_gguf_tokenizer.py",
        "engine/text/test_default_model_text.py",
        "engine/execution/test_golden.py",
    ),
}
collect_ignore = [file for module, files in NEEDED.items() if find_spec(module) is None for file in files]


def pytest_collection_modifyitems(items):
    """The browser last: while it is open its driver keeps an event loop running, beside which no other may start."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
