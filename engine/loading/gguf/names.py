"""The tensors of a GGUF file under the decoder's names, fused ones and stacks of experts taken apart. No values.

A part of a tensor is whole rows, and so a tensor of its own at an offset of its own.
"""
import re
from collections.abc import Iterator
from dataclasses import replace

from ...errors import ModelError
from ...models.config import ModelConfig
from .header import GGUFHeader, TensorInfo

OUTSIDE = frozenset(("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"))
"""What config.py reads: no weights."""

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
    "ffn_gate_up_exps": "mlp.experts.*.gate_up_proj",
}
_OF_GEMMA = {"ffn_norm": "pre_feedforward_layernorm"}
_PLACE = re.compile(r"(?:blk\.(\d+)\.)?([a-z_]+)\.(weight|bias)")


def decoder_tensors(config: ModelConfig, header: GGUFHeader) -> dict[str, TensorInfo]:
    """Under the decoder's names. One that is not known stays as it is, and so is named in the error."""
    infos: dict[str, TensorInfo] = {}
    for stored, info in header.tensors.items():
        if stored not in OUTSIDE:
            for name, part in _parts(config, decoder_name(stored, config.architecture), info):
                if name in infos:
                    raise ModelError(f"{header.source}: {stored[:80]!r} gives {name[:80]!r}, which is there already")
                infos[name] = part
    return infos


def decoder_name(stored: str, architecture: str) -> str:
    """`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    place = _PLACE.fullmatch(stored)
    names = _NAMES | _OF_GEMMA if architecture.startswith("gemma") else _NAMES
    if place is None or place[2] not in names:
        return stored
    layer = "" if place[1] is None else f"model.layers.{place[1]}."
    kind = "" if place[2] == "attn_sinks" else f".{place[3]}"
    return f"{layer}{names[place[2]]}{kind}"


def _parts(config: ModelConfig, name: str, info: TensorInfo) -> Iterator[tuple[str, TensorInfo]]:
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    wide, rows = config.intermediate_size, info.shape[:1]
    if ".qkv_proj." in name and rows == (query + 2 * key,):
        for part, first, count in (("q", 0, query), ("k", query, key), ("v", query + key, key)):
            yield name.replace(".qkv_proj.", f".{part}_proj."), _rows(info, first, count)
    elif config.architecture == "phi3" and name.endswith(".mlp.up_proj.weight") and rows == (2 * wide,):
        yield name.replace(".up_proj.", ".gate_proj."), _rows(info, 0, wide)
        yield name, _rows(info, wide, wide)
    elif ".experts.*." in name and config.experts and rows == (config.experts.count,):
        for number in range(config.experts.count):
            expert = replace(_rows(info, number, 1), shape=info.shape[1:])
            yield from _expert(config.experts.intermediate_size, name.replace(".*.", f".{number}."), expert)
    else:
        yield name, info


def _expert(wide: int, name: str, info: TensorInfo) -> Iterator[tuple[str, TensorInfo]]:
    if ".gate_up_proj." in name and info.shape[:1] == (2 * wide,):
        for part, first in (("gate", 0), ("up", wide)):
            yield name.replace(".gate_up_proj.", f".{part}_proj."), _rows(info, first, wide)
    else:
        yield name, info


def _rows(info: TensorInfo, first: int, count: int) -> TensorInfo:
    size = info.nbytes // info.shape[0]
    return replace(info, shape=(count, *info.shape[1:]), offset=info.offset + first * size, nbytes=count * size)
