"""Sizes: at which sizes kernels are measured, the same for every implementation. No kernel, no timing."""
from ..models.config import ModelConfig

ROWS = (1, 16, 64, 256)  # of a matrix product: tokens of a step
FEW_AND_MANY = (16, 256)  # rows of what is done to each alone
SAMPLED = 16  # rows of logits
SETTINGS = (("greedy", 0.0, 1.0), ("at random", 1.0, 1.0), ("top_p 0.9", 1.0, 0.9))  # temperature, top_p
SPREAD = 4.5  # of logits: after a text, too, some ten thousand are e^-16 as likely as the first, and dozens hold 90 %
DECODES = ((16, 128), (16, 1024), (64, 1024))  # sequences, context
CHUNK, CHUNK_CONTEXT = 256, 1024  # a piece of a prompt, and what it looks back on with itself
OUT_OF_CACHE = 256 << 20  # bytes of data that calls go round in, so that none finds it in a cache


def matrices(shape: ModelConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of what a step multiplies by."""
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return {
        "qkv": (query + 2 * key, shape.hidden_size),
        "output": (shape.hidden_size, query),
        "gate_up": (2 * shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
        "head": (shape.vocab_size, shape.hidden_size),
    }


def seen(counts: list[int], contexts: list[int]) -> int:
    """Pairs of a query and a key it sees, where each sequence's last `count` tokens are computed."""
    return sum(count * context - count * (count - 1) // 2 for count, context in zip(counts, contexts, strict=True))
