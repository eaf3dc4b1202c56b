"""config.json of a Hugging Face folder as a ModelConfig. What we do not do is refused by name, never dropped."""
from typing import Any

from ..errors import ModelError
from ..models.config import ARCHITECTURES, ModelConfig
from .json_object import JsonObject

_ROPE_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def model_config(config: JsonObject) -> ModelConfig:
    kind = config.need("model_type", str)
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{config.source}: architecture {kind[:80]!r} is not supported (supported: {known})")
    _refuse_what_we_do_not_do(config)
    hidden, heads = config.need("hidden_size", int), config.need("num_attention_heads", int)
    rope = config.object("rope_parameters") or config.object("rope_scaling")  # the first since transformers 5
    theta = (rope and rope.find("rope_theta", float)) or config.find("rope_theta", float)
    max_context = config.need("max_position_embeddings", int)
    bias = config.find("attention_bias", bool) or False
    try:
        return ModelConfig(
            architecture=kind,
            vocab_size=config.need("vocab_size", int),
            hidden_size=hidden,
            num_layers=config.need("num_hidden_layers", int),
            num_heads=heads,
            num_kv_heads=config.find("num_key_value_heads", int) or heads,
            head_dim=config.find("head_dim", int) or hidden // max(heads, 1),
            intermediate_size=config.need("intermediate_size", int),
            rms_norm_eps=config.need("rms_norm_eps", float),
            rope_theta=10000.0 if theta is None else theta,
            max_context=max_context,
            rope_scaling=_rope_scaling(rope),
            tie_word_embeddings=config.find("tie_word_embeddings", bool) or False,  # false in all these families
            attention_bias=bias or kind == "qwen2",
            attention_output_bias=bias and kind != "qwen2",
            qk_norm=kind == "qwen3",
            sliding_window=_sliding_window(config, kind, max_context),
        )
    except ModelError as error:
        raise ModelError(f"{config.source}: {error}") from error


def _refuse_what_we_do_not_do(config: JsonObject) -> None:
    if (activation := config.find("hidden_act", str) or "silu") not in ("silu", "swish"):
        raise ModelError(f"{config.source}: hidden_act {activation[:80]!r} is not supported")
    if config.find("mlp_bias", bool):
        raise ModelError(f"{config.source}: mlp_bias is not supported")
    if (config.find("partial_rotary_factor", float) or 1.0) != 1.0:
        raise ModelError(f"{config.source}: partial_rotary_factor is not supported")


def _rope_scaling(rope: JsonObject | None) -> dict[str, Any] | None:
    if rope is None:
        return None
    kind = rope.find("rope_type", str) or rope.find("type", str) or "default"
    if kind == "default":
        return None
    numbers = {key: number for key in _ROPE_NUMBERS if (number := rope.find(key, float)) is not None}
    wanted = _ROPE_NUMBERS if kind == "llama3" else _ROPE_NUMBERS[:1]
    for key in wanted:
        if not numbers.get(key, 0.0) > 0:
            raise ModelError(f"{rope.source}: {key} is missing or not above 0")
    return {"rope_type": kind, **numbers}


def _sliding_window(config: JsonObject, kind: str, max_context: int) -> int | None:
    window = config.find("sliding_window", int)
    switched_off = kind != "mistral" and not config.find("use_sliding_window", bool)
    if window is None or switched_off or window >= max_context:
        return None
    layers = config.need("num_hidden_layers", int)
    first = config.find("max_window_layers", int) or 0
    kinds = config.values.get("layer_types")
    if kinds is None:
        kinds = ["full_attention" if layer < first else "sliding_attention" for layer in range(min(layers, 2048))]
    if kinds == ["full_attention"] * layers:
        return None
    if kinds != ["sliding_attention"] * layers:
        raise ModelError(f"{config.source}: a sliding window in some of the layers only is not supported")
    return window
