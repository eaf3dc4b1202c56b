"""A GGUF file as a Checkpoint: what its keys mean, and its tensors. Not the bytes of the header (gguf.py)."""
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ..errors import ModelError
from ..models.config import ARCHITECTURES, ModelConfig
from . import recommended
from .contents import Checkpoint
from .gguf import GGUFHeader, TensorInfo, read_header
from .gguf_blocks import block_format
from .gguf_tokenizer import build_tokenizer, special_id
from .tokenizer_files import check_vocabulary, end_of_turn, first_id
from .weight_names import check_tensors, hugging_face_name

_CHUNK_BYTES = 4 << 20  # of quantised blocks, made into float32 at a time
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROPE_FREQS = "rope_freqs.weight"


def open_gguf(path: Path) -> Checkpoint:
    header = read_header(path)
    names = {hugging_face_name(name): info for name, info in header.tensors.items() if name != _ROPE_FREQS}
    config = _config(header, names)
    check_tensors(path.name, config, {name: info.shape for name, info in names.items()})
    tokenizer = build_tokenizer(header)
    check_vocabulary(path.name, tokenizer, config.vocab_size)
    bos, eos, eot, eom = (special_id(header, name) for name in ("bos", "eos", "eot", "eom"))
    tokens = header.need_list("tokenizer.ggml.tokens", str)
    bos_text, eos_text = ("" if number is None else tokens[number] for number in (bos, eos))
    template = header.find("tokenizer.chat_template", str)
    ends = {eos, eot, eom, end_of_turn(template, tokenizer, bos_text, eos_text)}
    return Checkpoint(
        name=path.name.removesuffix(".gguf"),
        config=config,
        fingerprint=_fingerprint(header),
        tokenizer=tokenizer,
        bos_id=first_id(tokenizer, bos),
        bos_text=bos_text,
        eos_text=eos_text,
        eos_ids=frozenset(end for end in ends if end is not None),
        chat_template=template,
        sampling=recommended.of_gguf(header),
        tensors=lambda: _tensors(header, names, config),
    )


def _config(header: GGUFHeader, names: dict[str, TensorInfo]) -> ModelConfig:
    source = header.path.name
    kind = header.need("general.architecture", str)
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{source}: architecture {kind[:80]!r} is not supported (supported: {known})")
    if (header.find("split.count", int) or 0) > 1:
        raise ModelError(f"{source}: one part of a split model; join the parts first")
    if header.find(f"{kind}.expert_count", int):
        raise ModelError(f"{source}: mixtures of experts are not supported")
    embedding = names.get("model.embed_tokens.weight")
    if embedding is None:
        raise ModelError(f"{source}: tensors missing: model.embed_tokens.weight")
    hidden = header.need(f"{kind}.embedding_length", int)
    heads = header.need(f"{kind}.attention.head_count", int)
    head_dim = header.find(f"{kind}.attention.key_length", int) or hidden // max(heads, 1)
    if (header.find(f"{kind}.attention.value_length", int) or head_dim) != head_dim:
        raise ModelError(f"{source}: values of another width than keys are not supported")
    if (header.find(f"{kind}.rope.dimension_count", int) or head_dim) != head_dim:
        raise ModelError(f"{source}: rotary positions on a part of the head are not supported")
    theta = header.find(f"{kind}.rope.freq_base", float)
    try:
        return ModelConfig(
            architecture=kind,
            vocab_size=embedding.shape[0],
            hidden_size=hidden,
            num_layers=header.need(f"{kind}.block_count", int),
            num_heads=heads,
            num_kv_heads=header.find(f"{kind}.attention.head_count_kv", int) or heads,
            head_dim=head_dim,
            intermediate_size=header.need(f"{kind}.feed_forward_length", int),
            rms_norm_eps=header.need(f"{kind}.attention.layer_norm_rms_epsilon", float),
            rope_theta=10000.0 if theta is None else theta,
            max_context=header.need(f"{kind}.context_length", int),
            rope_scaling=_rope_scaling(header, kind),
            rope_factors=_rope_factors(header, head_dim),
            tie_word_embeddings="lm_head.weight" not in names,
            attention_bias="model.layers.0.self_attn.q_proj.bias" in names,
            attention_output_bias="model.layers.0.self_attn.o_proj.bias" in names,
            qk_norm="model.layers.0.self_attn.q_norm.weight" in names,
            sliding_window=header.find(f"{kind}.attention.sliding_window", int) or None,
        )
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error


def _rope_scaling(header: GGUFHeader, kind: str) -> dict[str, Any] | None:
    name = header.find(f"{kind}.rope.scaling.type", str)
    factor = header.find(f"{kind}.rope.scaling.factor", float)
    if factor is None:
        factor = header.find(f"{kind}.rope.scale_linear", float)  # what older files call it
    if name == "none" or (name is None and factor is None):
        return None
    return {"rope_type": name or "linear", "factor": 1.0 if factor is None else factor}


def _rope_factors(header: GGUFHeader, head_dim: int) -> tuple[float, ...] | None:
    """Llama 3's scaling as it comes in GGUF: one divisor for each frequency, in a tensor of its own."""
    info = header.tensors.get(_ROPE_FREQS)
    if info is None:
        return None
    if info.type != 0 or info.shape != (head_dim // 2,):
        raise ModelError(f"{header.path.name}: {_ROPE_FREQS} is not {head_dim // 2} numbers of F32")
    with header.path.open("rb") as file:
        factors = _read(file, header, info).tolist()
    return None if all(factor == 1.0 for factor in factors) else tuple(factors)


def _tensors(
    header: GGUFHeader, names: dict[str, TensorInfo], config: ModelConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    with header.path.open("rb") as file:
        for name, info in sorted(names.items(), key=lambda item: item[1].offset):
            tensor = _read(file, header, info)
            if header.values["general.architecture"] == "llama":
                if ".q_proj." in name:
                    tensor = _in_halves(tensor, config.num_heads)
                elif ".k_proj." in name:
                    tensor = _in_halves(tensor, config.num_kv_heads)
            yield name, tensor


def _in_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Files of the architecture "llama", and of no other, store a head's rows as rotary pairs: 0, d/2, 1, d/2 + 1 …"""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _read(file: BinaryIO, header: GGUFHeader, info: TensorInfo) -> torch.Tensor:
    block = block_format(info.type)
    file.seek(info.offset)
    if block.dequantise is None:
        tensor = torch.empty(info.shape, dtype=_DTYPES[block.name])
        _fill(file, header, tensor.view(-1).view(torch.uint8).numpy())
        return tensor
    tensor = torch.empty(info.shape, dtype=torch.float32)
    values = tensor.view(-1, block.elements).numpy()
    step = max(1, _CHUNK_BYTES // block.nbytes)
    blocks = np.empty((min(step, len(values)), block.nbytes), np.uint8)
    for start in range(0, len(values), step):
        part = blocks[: len(values) - start]
        _fill(file, header, part)
        with np.errstate(all="ignore"):  # a scale that is no number shows in the logits, where a row can fail alone
            values[start : start + len(part)] = block.dequantise(part)
    return tensor


def _fill(file: BinaryIO, header: GGUFHeader, room: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    if file.readinto(room.data) != room.nbytes:  # type: ignore[attr-defined]
        raise ModelError(f"{header.path.name}: the file ended while it was read; was it changed?")


def _fingerprint(header: GGUFHeader) -> str:
    """Two fine-tunes can have the same header, so the first bytes of every tensor count too."""
    digest = hashlib.sha256(header.digest.encode())
    with header.path.open("rb") as file:
        for name, info in sorted(header.tensors.items()):
            file.seek(info.offset)
            digest.update(name.encode() + file.read(min(info.nbytes, 4096)))
    return digest.hexdigest()
