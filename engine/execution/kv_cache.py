"""How many KV blocks fit the memory given for them. Not which sequence holds which: that is policy's block pool."""
import torch

from ..config import BLOCK_SIZE, EngineConfig
from ..errors import ModelError
from ..models.config import ModelConfig


def bytes_per_block(model: ModelConfig, dtype: torch.dtype) -> int:
    """Keys and values of BLOCK_SIZE tokens in all layers."""
    return 2 * model.num_layers * BLOCK_SIZE * model.num_kv_heads * model.head_dim * dtype.itemsize


def blocks_that_fit(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    size = bytes_per_block(model, dtype)
    if config.kv_memory < size:
        raise ModelError(f"kv_memory is {config.kv_memory} bytes, and one block of {BLOCK_SIZE} tokens takes {size}")
    return config.kv_memory // size
