"""Makes `hamdam` importable from a bare checkout, where nothing was installed (a GPU machine, a fresh clone)."""
import sys
import types
from importlib.util import find_spec
from pathlib import Path

if find_spec("hamdam") is None:
    hamdam = types.ModuleType("hamdam")
    hamdam.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules["hamdam"] = hamdam


def pytest_collection_modifyitems(items):
    """The browser last: while it is open its driver keeps an event loop running, beside which no other may start."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
