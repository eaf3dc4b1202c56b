"""What a loaded model's parameters take in memory, and what `hamdam model check` says of it. Not a test."""
from pathlib import Path
from typing import Any

import torch

from hamdam.engine.config import EngineConfig
from hamdam.engine.model_check import check_model
from hamdam.engine.models.mlp import ExpertMlp
from hamdam.engine.models.transformer import Transformer
from hamdam.kernels.grouped import Grouped, Stacked
from hamdam.kernels.unpacked import Mxfp4


def bytes_of(weight: Any) -> int:
    if isinstance(weight, Grouped | Stacked | Mxfp4):
        return weight.nbytes
    assert isinstance(weight, torch.Tensor)
    return weight.numel() * weight.element_size()


def kept_bytes(model: Transformer) -> int:
    tied = model.config.tie_word_embeddings
    kept = [model.embedding, model.norm, *([] if tied else [model.head])]
    for layer in model.layers:
        kept += [*(one for _, one in layer.norms()), layer.qkv_bias, layer.output_bias, layer.sinks]
        kept += [layer.qkv, layer.output]
        mlp = layer.mlp
        if isinstance(mlp, ExpertMlp):
            kept += [mlp.router, mlp.router_bias, *mlp.gate_up_bias, *mlp.down_bias, *mlp.gate_up, *mlp.down]
        else:
            kept += [mlp.gate_up, mlp.down]
    return sum(bytes_of(one) for one in kept if one is not None)


def said_bytes(path: Path, dtype: str) -> tuple[str, int]:
    fit = check_model(EngineConfig(model=path, device="cpu", dtype=dtype)).fit
    assert fit is not None
    return next(iter(fit.weights.items()))
