"""ModelRunner: one step's batch in, one id a row out. It makes tensors of facts; what to compute was chosen before."""
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hamdam.kernels.device import for_device
from hamdam.kernels.ops import Rows

from ..config import BLOCK_SIZE, EngineConfig
from ..errors import ModelError
from ..loading.checkpoint import Checkpoint
from ..models.llama import Llama
from ..policy.batch import Batch, Broken, Row
from .draws import BROKEN_HIDDEN
from .kv_cache import blocks_that_fit, context_limit, memory_on_cpu
from .sampler import sample

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_runner(checkpoint: Checkpoint, config: EngineConfig) -> "ModelRunner":
    """Reads the weights and sets up the device. ModelError says what does not fit."""
    device = _device(config.device)
    dtype = _dtype(config.dtype, device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return ModelRunner(checkpoint, config, device=device, dtype=dtype)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is not known; auto, cpu and cuda are")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("device cuda was asked for, and PyTorch finds none")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not known; auto, int8, int16, {' and '.join(DTYPES)} are")
    return DTYPES[name]


@dataclass(frozen=True, slots=True)
class Step:
    """A batch as tensors on the device."""

    ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    rows: Rows


class ModelRunner:
    """Implements policy.batch.Runner."""

    @torch.inference_mode()
    def __init__(
        self, checkpoint: Checkpoint, config: EngineConfig, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        model = checkpoint.config
        self.max_context = context_limit(config, model)
        self.num_blocks = blocks_that_fit(memory_on_cpu(config), model, dtype.itemsize)
        self.num_layers = model.num_layers
        self.vocab_size = model.vocab_size
        self.eos_ids = checkpoint.eos_ids
        self._device = device
        self._ops = for_device(device)
        self.description = f"{str(dtype).removeprefix('torch.')} on {device.type}"
        self.kv_fingerprint = f"{checkpoint.fingerprint} {dtype} {self._ops.kv_layout}"
        self._model = Llama(model, self._ops, dtype=dtype, device=device)
        self._model.load(checkpoint.tensors())
        self._cache = self._ops.new_kv_cache(
            model.num_layers, self.num_blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim,
            dtype=dtype, device=device,
        )

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[int | Broken | None]:
        self._ops.copy_blocks(self._cache, batch.copies)
        if not batch.rows:
            return []
        step = self._step(batch.rows)
        hidden = self._model.forward(step.ids, step.positions, step.rows, self._cache)
        return self._results(batch.rows, hidden)

    def kv(self, blocks: list[int], layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Keys and values of whole blocks in one layer: [blocks, 16, kv_heads, head_dim] each."""
        keys, values = self._cache[layer][:, blocks].float().cpu().numpy()
        return keys, values

    def close(self) -> None:
        """Frees the weights and the KV cache."""
        del self._model, self._cache

    def _step(self, rows: list[Row]) -> Step:
        counts = torch.tensor([row.count for row in rows])
        contexts = torch.tensor([row.start + row.count for row in rows])
        starts = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=starts[1:])
        tables = np.zeros((len(rows), -(-int(contexts.max()) // BLOCK_SIZE)), np.int64)
        for line, row in zip(tables, rows, strict=True):
            blocks = row.sequence.block_table[: len(line)]
            line[: len(blocks)] = blocks
        block_tables = torch.from_numpy(tables)
        owner = torch.arange(len(rows)).repeat_interleave(counts)  # of each token, its row
        positions = torch.arange(len(owner)) + (contexts - starts[1:])[owner]
        slots = block_tables[owner, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        ids = torch.tensor([id for row in rows for id in row.sequence.ids[row.start : row.start + row.count]])
        return Step(
            ids=ids.to(self._device),
            positions=positions.to(self._device),
            rows=Rows(
                query_starts=starts.to(self._device),
                context_lengths=contexts.to(self._device),
                block_tables=block_tables.to(self._device),
                slots=slots.to(self._device),
            ),
        )

    def _results(self, rows: list[Row], hidden: Tensor) -> list[int | Broken | None]:
        """hidden: each row's last token. A row that samples is judged by its logits, another by its hidden state: its
        blocks are about to be published, and what is not a number there would spread to all who share them."""
        finite = hidden.isfinite().all(-1).tolist()
        results: list[int | Broken | None] = [
            None if fine else BROKEN_HIDDEN for fine in finite
        ]
        sampling = [index for index, row in enumerate(rows) if row.sample]
        if sampling:
            logits = self._model.logits(hidden[torch.tensor(sampling, device=self._device)])
            sampled = sample(self._ops, logits, [rows[index].sequence for index in sampling])
            for index, id in zip(sampling, sampled, strict=True):
                results[index] = id
        return results
