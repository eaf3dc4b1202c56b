"""tensors_for: in which form PyTorch gets each of a checkpoint's tensors. It reads no file.

As they are stored, where the device multiplies such matrices at their best (Ops.quantised), or where `hold` says so
(holding.py); else as floats. `quantize` rounds plain ones:
  int8, fp8    8 bits, a scale for each output
  int4         4 bits, a scale and a zero for each 32 inputs
Rows stay floats. Only the layers' matrices are rounded: embedding and head are a small part of a model, and the most
sensitive one.
"""
from collections.abc import Iterable, Iterator

import torch

from hamdam.kernels.ops import Ops
from hamdam.kernels.quantized_whole import KINDS, rounded

from ..errors import ModelError
from ..loading.checkpoint import Checkpoint
from ..loading.contents import Hold
from ..models.weights import Piece, Source


def forms_of(checkpoint: Checkpoint, kind: str | None, ops: Ops, dtype: torch.dtype) -> tuple[str, ...]:
    """The KINDS of quantised matrices that the model may have. ModelError where it cannot have the one asked for."""
    halves = dtype in (torch.bfloat16, torch.float16)
    if kind is None:
        return KINDS if ops.quantised and halves and checkpoint.quantised() else ()
    if kind not in KINDS:
        raise ModelError(f"quantize {kind!r} is not known; {', '.join(KINDS)} are")
    if formats := checkpoint.quantised():
        raise ModelError(f"quantize {kind} is for plain weights, and these are {' and '.join(formats)}")
    if ops.quantised and not halves:
        raise ModelError(f"quantize {kind} needs the dtype bfloat16 on a GPU: its kernels multiply no float32")
    return (kind,)


def tensors_for(
    checkpoint: Checkpoint, kind: str | None, ops: Ops, dtype: torch.dtype, device: torch.device, hold: Hold
) -> Iterator[tuple[str, Source]]:
    if kind is not None:
        return _rounded(checkpoint.pieces(keep=False), kind, device)
    return checkpoint.pieces(keep=bool(forms_of(checkpoint, None, ops, dtype)), hold=hold)


def _rounded(
    tensors: Iterable[tuple[str, Source]], kind: str, device: torch.device
) -> Iterator[tuple[str, Source]]:
    """Piece by piece, on the device. What is in no multiple of 32 inputs stays as it is."""
    for name, source in tensors:
        part = None
        if isinstance(source, Piece) and isinstance(source.values, torch.Tensor) and name.endswith("_proj.weight"):
            part = rounded(source.values.to(device), kind)
        yield name, source if part is None or not isinstance(source, Piece) else source._replace(values=part)
