"""RandomRunner: random logits, or those that a test wishes for, through the sampler of PyTorch's path. Not a test."""
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scripted import CHATML, byte_tokenizer
from tokenizers import AddedToken

from hamdam.engine import Engine, EngineConfig
from hamdam.engine.execution.sampler import sample
from hamdam.engine.policy.batch import Batch, Broken
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.text.codec import Codec
from hamdam.kernels.device import for_device

PADDING = 200  # ids beyond the tokenizer's
Wish = Callable[[Sequence], dict[int, float]]


class RandomRunner:
    """`wish` gives logits of some ids; the others are of a normal distribution, and padded ids are liked best."""

    def __init__(self, vocabulary: int, eos_ids: frozenset[int], wish: Wish | None = None, *, seed: int = 0) -> None:
        self.vocab_size, self.eos_ids = vocabulary, eos_ids
        self.num_blocks, self.max_context = 4096, 8192
        self.description, self.kv_fingerprint = "random logits", "random"
        self.gate = None
        self._wish, self._seed = wish, seed
        self._ops = for_device(torch.device("cpu"))

    def run(self, batch: Batch) -> list[int | Broken | None]:
        rows = [row for row in batch.rows if row.sample]
        if not rows:
            return [None] * len(batch.rows)
        drawn = iter(sample(self._ops, self._logits([row.sequence for row in rows]), [row.sequence for row in rows]))
        return [next(drawn) if row.sample else None for row in batch.rows]

    def close(self) -> None:
        pass

    def _logits(self, sequences: list[Sequence]) -> torch.Tensor:
        logits = np.zeros((len(sequences), self.vocab_size), np.float32)
        for row, sequence in zip(logits, sequences, strict=True):
            row[:] = np.random.default_rng([self._seed, sequence.id, len(sequence.ids)]).normal(size=len(row))
            row[-PADDING:] = 50
            if self._wish is not None:
                for id, logit in self._wish(sequence).items():
                    row[id] = logit
        return torch.from_numpy(logits)


def random_engine(
    wish: Wish | None = None,
    *,
    seed: int = 0,
    template: str = CHATML,
    added: tuple[str, ...] = (),
    special: tuple[str, ...] = (),
    **config: Any,
) -> Engine:
    """An Engine that is not started yet, over a tokenizer of bytes, and of what is `added` or `special`."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    ends = frozenset(tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    runner = RandomRunner(tokenizer.get_vocab_size() + PADDING, ends, wish, seed=seed)
    codec = Codec(tokenizer, template, bos_text="", eos_text="<|im_end|>", bos_id=None, eos_ids=ends)
    return Engine(EngineConfig(model=Path("random"), **config), codec, runner, model_name="random")
