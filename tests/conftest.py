"""Makes `hamdam` importable from a bare checkout, where nothing was installed (a GPU machine, a fresh clone)."""
import sys
import types
from importlib.util import find_spec
from pathlib import Path

if find_spec("hamdam") is None:
    hamdam = types.ModuleType("hamdam")
    hamdam.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules["hamdam"] = hamdam
