"""open_engine: from a model's path to an Engine. It puts the engine's rooms together and computes nothing itself."""
from .config import EngineConfig
from .engine import Engine
from .grammar.grammars import Grammars


def open_engine(config: EngineConfig) -> Engine:
    """Reads the model and prepares its KV pool; raises ModelError with one line where that cannot be done."""
    # The one import inside a function here: torch takes most of a second, and half of the command line never computes.
    from .execution.runners import open_runner
    from .loading.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(config.model)
    codec = checkpoint.codec()
    grammars = Grammars(lambda: codec.texts(checkpoint.config.vocab_size))
    grammars.prepare()  # beside the weights, which are read without Python's lock
    runner = open_runner(checkpoint, config)
    grammars.prepared()
    return Engine(
        config, codec, runner, model_name=checkpoint.name, sampling=checkpoint.sampling, grammars=grammars
    )
