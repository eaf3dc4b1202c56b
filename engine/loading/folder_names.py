"""The tensors of a Hugging Face folder under the decoder's names, fused ones taken apart. It reads no values.

What is fused along its first dimensions lies in the file part after part, so that a part is a tensor of its own at an
offset of its own, and nothing is read twice. A name that is not known stays as it is, and so is named in the error.
"""
import re
from collections.abc import Iterator, Mapping

import numpy as np

from ..errors import ModelError
from ..models.config import ModelConfig
from .arranged_weights import Change
from .numbers import DTYPES
from .safetensors import SafetensorsFile, StoredTensor

Part = tuple[str, StoredTensor, Change | None]

_OF_PICTURES = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.")  # beside their text
_READS_PICTURES = ("gemma3", "mistral")
_RENAMED = (  # what transformers renames as well when it loads such files
    (re.compile(r"^(?:model\.)?language_model\.(?:model\.)?"), "model."),
    (re.compile(r"\.block_sparse_moe\."), ".mlp."),
    (re.compile(r"(\.experts\.\d+)\.w1\."), r"\1.gate_proj."),
    (re.compile(r"(\.experts\.\d+)\.w2\."), r"\1.down_proj."),
    (re.compile(r"(\.experts\.\d+)\.w3\."), r"\1.up_proj."),
    (re.compile(r"\.mlp\.router\."), ".mlp.gate."),
)
_EXPERTS = re.compile(r"^(.*\.mlp\.experts)\.(gate_up|down)_proj(_bias)?$")


def decoder_tensors(
    config: ModelConfig, holders: Mapping[str, SafetensorsFile]
) -> tuple[dict[str, SafetensorsFile], dict[str, Change]]:
    """holders: the file that holds each tensor of the folder. Returns the same of the decoder's tensors, in files whose
    tables have them, and what is to be done to some of their values."""
    tables: dict[int, dict[str, StoredTensor]] = {id(file): {} for file in holders.values()}
    files = {id(file): SafetensorsFile(file.path, tables[id(file)]) for file in holders.values()}
    found: dict[str, SafetensorsFile] = {}
    changes: dict[str, Change] = {}
    for stored_name, file in holders.items():
        if config.architecture in _READS_PICTURES and _OF_PICTURES.match(stored_name):
            continue
        name = stored_name
        for pattern, words in _RENAMED:
            name = pattern.sub(words, name)
        for part, stored, change in _parts(config, name, file.tensors[stored_name]):
            if part in found:
                raise ModelError(f"{file.path.name}: {stored_name[:80]!r} gives {part[:80]!r}, which is there already")
            tables[id(file)][part], found[part] = stored, files[id(file)]
            if change is not None:
                changes[part] = change
    return found, changes


def _parts(config: ModelConfig, name: str, whole: StoredTensor) -> Iterator[Part]:
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    wide, rows = config.intermediate_size, whole.shape[:1]
    if whole.dtype not in DTYPES:  # quantised: folder_weights.py takes it apart with its scales
        yield name, whole, None
        return
    if name.endswith(".self_attn.qkv_proj.weight") and rows == (query + 2 * key,):
        for part, first, count in (("q", 0, query), ("k", query, key), ("v", query + key, key)):
            yield name.replace(".qkv_proj.", f".{part}_proj."), _rows(whole, first, count), None
    elif name.endswith(".mlp.gate_up_proj.weight") and rows == (2 * wide,):
        for part, first in (("gate", 0), ("up", wide)):
            yield name.replace(".gate_up_proj.", f".{part}_proj."), _rows(whole, first, wide), None
    elif (fused := _EXPERTS.match(name)) and config.experts and rows == (config.experts.count,):
        yield from _experts(config, fused, whole)
    else:
        yield name, whole, None


def _experts(config: ModelConfig, fused: re.Match[str], whole: StoredTensor) -> Iterator[Part]:
    """[experts, out, in], gate over up; but in gpt_oss [experts, in, out], gate and up in turns."""
    assert config.experts is not None
    experts, part, bias = fused.groups()
    kind, wide = "bias" if bias else "weight", config.experts.intermediate_size
    turned_over = config.architecture == "gpt_oss"
    for number in range(config.experts.count):
        name, own = f"{experts}.{number}", _rows(whole, number, 1)
        own = StoredTensor(own.dtype, whole.shape[1:], own.offset, own.nbytes)
        if part == "down":
            yield f"{name}.down_proj.{kind}", own, _turned_over(own, 0, 1) if turned_over else None
        else:
            for first, half in enumerate(("gate", "up")):
                if turned_over:
                    yield f"{name}.{half}_proj.{kind}", own, _turned_over(own, first, 2)
                else:
                    yield f"{name}.{half}_proj.{kind}", _rows(own, first * wide, wide), None


def _rows(whole: StoredTensor, first: int, count: int) -> StoredTensor:
    size = whole.nbytes // max(whole.shape[0], 1)
    return StoredTensor(whole.dtype, (count, *whole.shape[1:]), whole.offset + first * size, count * size)


def _turned_over(stored: StoredTensor, first: int, step: int) -> Change:
    """Each `step`-th column from `first` on as a row."""
    *outer, columns = stored.shape
    rows = len(range(first, columns, step))
    return Change((rows, *outer), lambda values: np.ascontiguousarray(values[..., first::step].T))
