"""How many KV blocks fit the memory given for them. Not which sequence holds which: that is policy's block pool."""
from ..config import BLOCK_SIZE, EngineConfig
from ..errors import ModelError
from ..models.config import ModelConfig

ON_CPU = 1 << 30


def bytes_per_block(model: ModelConfig, size: int) -> int:
    """Keys and values of BLOCK_SIZE tokens in all layers, in numbers of `size` bytes."""
    return 2 * model.num_layers * BLOCK_SIZE * model.num_kv_heads * model.head_dim * size


def blocks_that_fit(memory: int, model: ModelConfig, size: int) -> int:
    """`memory` bytes of numbers of `size` bytes."""
    needed = bytes_per_block(model, size)
    if memory < needed:
        raise ModelError(f"kv_memory is {memory} bytes, and one block of {BLOCK_SIZE} tokens takes {needed}")
    return memory // needed


def memory_on_cpu(config: EngineConfig) -> int:
    """Bytes for KV: those asked for, or a part of what a machine has that does other things too."""
    return ON_CPU if config.kv_memory is None else config.kv_memory


def context_limit(config: EngineConfig, model: ModelConfig) -> int:
    limit = config.max_context or model.max_context
    if limit > model.longest_context:
        stretched = f" and can be stretched to {model.longest_context}" * (model.longest_context > model.max_context)
        raise ModelError(f"max_context is {limit}; the model was trained for {model.max_context} tokens{stretched}")
    return limit
