"""WholeWindows: the logits of every token of a text, by PyTorch, to hold faster and coarser ways to. Not a test."""
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hamdam.engine.config import BLOCK_SIZE
from hamdam.engine.execution.tensors import tensors_for
from hamdam.engine.loading.checkpoint import Checkpoint
from hamdam.engine.loading.contents import Hold
from hamdam.engine.models.transformer import Transformer
from hamdam.kernels.device import for_device
from hamdam.kernels.ops import Attention, Ops, Rows

CPU = torch.device("cpu")


class OneText:
    """Ops to which all tokens are of one row, where the model is told that each is a row's last one: it returns the
    hidden state of those."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def paged_attention(self, cache: Tensor, rows: Rows, **named: Any) -> Attention:
        whole = replace(rows, query_starts=rows.query_starts[[0, -1]])
        return self._ops.paged_attention(cache, whole, **named)


class WholeWindows:
    @torch.inference_mode()
    def __init__(
        self, checkpoint: Checkpoint, *, longest: int, dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None, quantize: str | None = None, hold: Hold = "experts",
    ) -> None:
        """kv_dtype: of the cache; None: as the model's. quantize: as the engine's, of weights in few bits too."""
        model = checkpoint.config
        self._ops = OneText(for_device(CPU))
        self._model = Transformer(model, self._ops, dtype=dtype, device=CPU)
        self._model.load(tensors_for(checkpoint, quantize, self._ops, dtype, CPU, hold))
        self._blocks = -(-longest // BLOCK_SIZE)
        self._cache = self._ops.new_kv_cache(
            model.num_layers, self._blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim,
            dtype=kv_dtype or dtype, device=CPU,
        )

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """[tokens, vocabulary]"""
        positions = torch.arange(len(ids))
        rows = Rows(
            query_starts=torch.arange(len(ids) + 1), context_lengths=torch.tensor([len(ids)]),
            block_tables=torch.arange(self._blocks)[None], slots=positions,
        )
        hidden = self._model.forward(torch.tensor(ids), positions, rows, self._cache)
        found: NDArray[np.float32] = self._model.logits(hidden).numpy()
        return found
