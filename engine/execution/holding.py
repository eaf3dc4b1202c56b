"""hold_of: which quantised matrices PyTorch keeps as they are stored, though no kernel multiplies them so."""
from ..config import EngineConfig
from ..loading.contents import Hold


def hold_of(config: EngineConfig, device: str) -> Hold:
    """All on the CPU, where they become floats in the processor's cache, a few rows at a time; but a dtype of floats
    that is asked for by name is one for memory too. Of experts a step needs few: those stay quantised in any case."""
    if device != "cpu" or config.quantize is not None:
        return "nothing"
    return "all" if config.dtype == "auto" else "experts"
