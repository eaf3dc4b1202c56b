"""Tiny random models in both formats, written by rules of their own, to hold the loader against. Not a test."""
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

Tensors = dict[str, torch.Tensor]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1 and 2 of the tiny tokenizer
TOKENS = (*ADDED, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he")
_GGUF_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def random_tensors(config: dict[str, Any], *, seed: int = 0, head: bool = True) -> Tensors:
    """Every tensor of a model of this config, by Hugging Face name, in float32."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, kind = config["hidden_size"], config["intermediate_size"], config["model_type"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,)}
        shapes |= {at + "self_attn.q_proj.weight": (q, hidden), at + "self_attn.k_proj.weight": (kv, hidden)}
        shapes |= {at + "self_attn.v_proj.weight": (kv, hidden), at + "self_attn.o_proj.weight": (hidden, q)}
        shapes |= {at + "mlp.gate_proj.weight": (inner, hidden), at + "mlp.up_proj.weight": (inner, hidden)}
        shapes |= {at + "mlp.down_proj.weight": (hidden, inner)}
        if kind == "qwen2" or config.get("attention_bias"):
            shapes |= {at + f"self_attn.{name}_proj.bias": (width,) for name, width in (("q", q), ("k", kv), ("v", kv))}
        if config.get("attention_bias"):
            shapes[at + "self_attn.o_proj.bias"] = (hidden,)
        if kind == "qwen3":
            shapes |= {at + "self_attn.q_norm.weight": (head_dim,), at + "self_attn.k_norm.weight": (head_dim,)}
    shapes["model.norm.weight"] = (hidden,)
    if head:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def byte_tokenizer() -> Tokenizer:
    """Three control tokens, every byte a token, one merge: 260 ids."""
    tokenizer = Tokenizer(BPE({text: number for number, text in enumerate(TOKENS)}, [("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in ADDED])
    return tokenizer


def write_folder(folder: Path, config: dict[str, Any] | None = None, tensors: Tensors | None = None) -> Path:
    """A folder as `save_pretrained` leaves it, without the optional files."""
    config = CONFIG if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    save_file(random_tensors(config) if tensors is None else tensors, folder / "model.safetensors")
    return folder


def add_text(writer: Any) -> None:
    """Tokens, their one merge, and the template, to a gguf.GGUFWriter."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in ADDED else 1 for token in TOKENS])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHATML)


def write_gguf(
    path: Path,
    config: dict[str, Any] | None = None,
    tensors: Tensors | None = None,
    *,
    kinds: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray[Any, np.dtype[np.float32]]] | None = None,
    raw: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] | None = None,
) -> Path:
    """The same model as GGUF, by the format's own writer. `kinds` quantises the tensors whose name ends so.

    `raw`: the blocks of some of those, where the writer cannot make them.
    """
    config = CONFIG if config is None else config
    tensors = random_tensors(config) if tensors is None else tensors
    arch = config["model_type"]
    gguf = pytest.importorskip("gguf")  # the format's own package, which not every machine has
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    add_text(writer)
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, value, _value_type(value))
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if arch in ("llama", "mistral3"):
            if ".q_proj." in name:
                values = _as_rotary_pairs(values, config["num_attention_heads"])
            elif ".k_proj." in name:
                values = _as_rotary_pairs(values, config["num_key_value_heads"])
        kind = next((kind for end, kind in (kinds or {}).items() if name.endswith(end)), None)
        if kind is None:
            writer.add_tensor(_gguf_name(name), values)
        else:
            blocks = raw[name] if raw and name in raw else gguf.quants.quantize(values, kind)
            writer.add_tensor(_gguf_name(name), blocks, raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_rotary_pairs(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Row by row: within a head, row i of the first half, then row i of the second."""
    head_dim = len(values) // heads
    order = [head * head_dim + half * head_dim // 2 + row for head in range(heads)
             for row in range(head_dim // 2) for half in (0, 1)]  # fmt: skip
    return values[order]


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        number, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{number}.{_GGUF_NAMES[part]}.{suffix}"
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    return f"{outer[stem]}.{suffix}"


def _value_type(value: Any) -> Any:
    gguf = pytest.importorskip("gguf")
    if type(value) is int and not 0 <= value < 2**32:
        return gguf.GGUFValueType.INT64 if value < 0 else gguf.GGUFValueType.UINT64
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
    return kinds.get(type(value)) or gguf.GGUFValueType.get_type(value)
