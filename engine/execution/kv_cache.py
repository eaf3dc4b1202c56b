"""How many KV blocks fit the memory given for them. Not which sequence holds which: that is policy's block pool."""
from ..config import BLOCK_SIZE, EngineConfig
from ..errors import ModelError
from ..memory import memory_here
from ..models.config import ModelConfig
from .quality import EXACT_ABOVE

ON_CPU = 1 << 30
NATIVE = "bfloat16"  # in which native code keeps KV
NUMBER = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "fp8": 1}  # bytes
SCALE = {"int8": 4, "fp8": 4}  # bytes beside the numbers of a token's key or value in a head


def kv_dtype(config: EngineConfig, dtype: str) -> str:
    """In what KV is kept where `dtype` computes: what was asked for, else that itself; with native code its own."""
    if config.kv_dtype == "auto":
        return NATIVE if dtype in EXACT_ABOVE else dtype
    if config.kv_dtype not in NUMBER:
        raise ModelError(f"kv_dtype {config.kv_dtype!r} is not known; auto, {', '.join(NUMBER)} are")
    return config.kv_dtype


def bytes_per_block(model: ModelConfig, kept: str) -> int:
    """Keys and values of BLOCK_SIZE tokens in all layers, in a dtype that `kv_dtype` gave."""
    return 2 * model.num_layers * BLOCK_SIZE * model.num_kv_heads * (model.head_dim * NUMBER[kept] + SCALE.get(kept, 0))


def blocks_that_fit(memory: int, model: ModelConfig, kept: str) -> int:
    """In `memory` bytes."""
    needed = bytes_per_block(model, kept)
    if memory < needed:
        raise ModelError(f"kv_memory is {memory} bytes, and one block of {BLOCK_SIZE} tokens takes {needed}")
    return memory // needed


def memory_on_cpu(config: EngineConfig) -> int:
    """Bytes for KV: those asked for, or a part of what a machine has that does other things too."""
    return ON_CPU if config.kv_memory is None else no_more_than(memory_here().total, config.kv_memory)


def no_more_than(total: int, asked: int) -> int:
    """kv_memory as it was asked for. ModelError where a machine of `total` bytes (0: nobody knows) never has it: some
    systems would give it, and end the process once it is used."""
    if 0 < total < asked:
        raise ModelError(f"kv_memory is {asked / 1e9:.1f} GB, and there are {total / 1e9:.1f} GB in all")
    return asked


def context_limit(config: EngineConfig, model: ModelConfig) -> int:
    limit = config.max_context or model.max_context
    if limit > model.longest_context:
        stretched = f" and can be stretched to {model.longest_context}" * (model.longest_context > model.max_context)
        raise ModelError(f"max_context is {limit}; the model was trained for {model.max_context} tokens{stretched}")
    return limit
