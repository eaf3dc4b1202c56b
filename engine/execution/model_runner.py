"""ModelRunner: one step's batch in, one id a row out, with PyTorch. What to compute it with was chosen before."""
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hamdam.kernels.device import for_device
from hamdam.kernels.kv_codes import as_moved, read
from hamdam.kernels.ops import Ops
from hamdam.kernels.reference import Reference

from ..config import BLOCK_SIZE, EngineConfig
from ..errors import ModelError
from ..loading.checkpoint import Checkpoint
from ..models.rotary import rotary_digest
from ..models.transformer import Transformer
from ..policy.batch import Batch, Result
from ..policy.prompt_rows import SCORED_A_STEP
from .decode_graphs import CudaRecorder, DecodeGraphs, Record, Scores
from .gpu_memory import left_for_kv
from .holding import hold_of
from .kv_cache import blocks_that_fit, context_limit, kv_dtype, memory_on_cpu
from .outcome import Outcome
from .rehearsal import made_up_rows
from .step_inputs import Drawn, Shape, Step, StepInputs, blocks_of
from .tensors import forms_of, tensors_for
from .trial import working

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV_DTYPES = DTYPES | {"float16": torch.float16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


def load_runner(checkpoint: Checkpoint, config: EngineConfig) -> "ModelRunner":
    """Reads the weights and sets up the device. ModelError says what does not fit."""
    device = _device(config.device)
    dtype = _dtype(config.dtype, device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    kernels = None if config.cache is None else config.cache / "triton"
    ops = for_device(device, invariant=config.invariant, cache=kernels)
    forms = forms_of(checkpoint, config.quantize, ops, dtype)
    if device.type != "cpu":
        ops = working(
            ops, checkpoint.config, dtype=dtype, kv_dtype=KV_DTYPES[_kept(config, dtype)], device=device,
            most=config.max_batch_tokens, forms=forms,
        )
    if config.invariant and not ops.invariant:
        raise ModelError(f"invariant cannot be had: sums of PyTorch on {device.type} depend on what else a step holds")
    recordable = device.type != "cpu" and not isinstance(ops, Reference) and checkpoint.config.experts is None
    record = CudaRecorder() if recordable else None
    try:
        return ModelRunner(checkpoint, config, ops, device=device, dtype=dtype, record=record, ahead=recordable)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"the model does not fit the memory of this GPU: {' '.join(str(error).split())}") from error


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


def _kept(config: EngineConfig, dtype: torch.dtype) -> str:
    return kv_dtype(config, _name(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step that was launched before it was asked for."""

    batch: Batch
    scores: Scores | None


class ModelRunner:
    """Implements policy.batch.Runner."""

    @torch.inference_mode()
    def __init__(
        self, checkpoint: Checkpoint, config: EngineConfig, ops: Ops, *, device: torch.device, dtype: torch.dtype,
        record: Record | None = None, ahead: bool = False,
    ) -> None:
        """record: how decode steps are recorded; None: they are not. ahead: whether to launch what a batch foresees."""
        model = checkpoint.config
        self.max_context = context_limit(config, model)
        kept = _kept(config, dtype)
        memory = config.kv_memory if device.type == "cuda" else memory_on_cpu(config)
        if memory is not None:
            blocks_that_fit(memory, model, kept)  # what does not fit is refused before the weights are read
        self.num_layers = model.num_layers
        self.vocab_size = model.vocab_size
        self.eos_ids = checkpoint.eos_ids
        self._device, self._kv_dtype, self._ops = device, KV_DTYPES[kept], ops
        rounded = "" if config.quantize is None else f", weights in {config.quantize}"
        kv = "" if kept == _name(dtype) else f", KV in {kept}"
        self.description = f"{_name(dtype)} on {device.type}{rounded}{kv}{', invariant' * ops.invariant}"
        turned = rotary_digest(model, self.max_context)
        self.kv_fingerprint = f"{checkpoint.fingerprint} {dtype} {ops.kv_layout} {turned}{rounded}{kv}"
        self._model = Transformer(model, ops, dtype=dtype, device=device, context=self.max_context)
        hold = "nothing" if ops.quantised else hold_of(config, device.type)
        self._model.load(tensors_for(checkpoint, config.quantize, ops, dtype, device, hold))
        most = max(1, min(config.max_running, config.max_batch_tokens - 1))  # rows
        longest = blocks_of(self.max_context)
        largest = min(most + SCORED_A_STEP, config.max_batch_tokens)
        self._inputs = StepInputs(Shape(config.max_batch_tokens, largest, largest, longest), device)
        self._graphs: DecodeGraphs | None = None
        self._ahead = ahead
        self._begun: _Begun | None = None
        if memory is None:
            self._cache = self._new_cache(1)
            memory = left_for_kv(config.gpu_memory, device, lambda: self._rehearse(config.max_batch_tokens, most))
        self.num_blocks = blocks_that_fit(memory, model, kept)
        self._cache = self._new_cache(self.num_blocks + 1)  # the last is padding's
        if record is not None:
            logits = torch.empty(most, model.vocab_size, dtype=torch.float32, device=device)
            self._graphs = DecodeGraphs(
                self._compute, self._inputs, logits, blocks=longest, padding_block=self.num_blocks, record=record
            )
            self._graphs.prepare()

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Result]:
        """Where it computes ahead, the step that `batch` foresees is launched before this one's ids are waited for, and
        its draws are launched when it is run: all that they depend on is known by then, and the device is still at it.
        """
        begun, self._begun = self._begun, None
        scores = begun.scores if begun is not None and begun.batch is batch else self._launch(batch)
        if scores is None:
            return []
        outcome = Outcome(self._ops, batch.rows, scores)
        if self._ahead and (foreseen := batch.foresee()) is not None:
            self._begun = _Begun(foreseen, self._launch(foreseen, outcome.drawn()))
        return outcome.results()

    def kv(self, blocks: list[int], layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Keys and values of whole blocks in one layer: [blocks, 16, kv_heads, head_dim] each."""
        kept = as_moved(self._cache[layer])[:, blocks]
        keys, values = read(kept, self._kv_dtype, torch.float32).cpu().numpy()
        return keys, values

    def close(self) -> None:
        """Frees the weights and the KV cache."""
        if self._begun is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        del self._begun, self._graphs, self._model, self._cache

    def _launch(self, batch: Batch, drawn: Drawn | None = None) -> Scores | None:
        """drawn: where the ids are that a foreseen batch begins with. None where there are no rows."""
        self._ops.copy_blocks(self._cache, batch.copies)
        if not batch.rows:
            return None
        scores = self._graphs.replay(batch.rows, drawn) if self._graphs is not None else None
        return scores or self._compute(self._inputs.take(batch.rows, drawn=drawn))

    def _compute(self, step: Step, logits: Tensor | None = None) -> Scores:
        hidden = self._model.forward(step.ids, step.positions, step.rows, self._cache)
        return Scores(hidden, self._model.logits(hidden[step.sampled], logits))

    def _rehearse(self, tokens: int, rows: int) -> None:
        made_up = made_up_rows(tokens, rows)
        Outcome(self._ops, made_up, self._compute(self._inputs.take(made_up))).results()

    def _new_cache(self, blocks: int) -> Tensor:
        model = self._model.config
        return self._ops.new_kv_cache(
            model.num_layers, blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim, dtype=self._kv_dtype,
            device=self._device,
        )
