"""config.json as a ModelConfig, in the spellings that exist; what we do not do is refused by its name."""
from typing import Any

import pytest
from tiny_models import CONFIG

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.folder_config import model_config
from hamdam.engine.loading.json_object import JsonObject
from hamdam.engine.models.config import ModelConfig
from hamdam.engine.models.rope import Rope

QWEN2_WINDOW = {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}
QWEN3_MOE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LLAMA3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


def read(**changes: Any) -> ModelConfig:
    return model_config(JsonObject("config.json", CONFIG | changes))


def test_the_plain_keys_are_read() -> None:
    config = read()
    assert (config.architecture, config.num_layers) == ("llama", 2)
    assert (config.hidden_size, config.intermediate_size) == (32, 64)
    assert (config.num_heads, config.num_kv_heads, config.vocab_size, config.max_context) == (4, 2, 264, 128)
    assert (config.rms_norm_eps, config.rope) == (1e-5, Rope(theta=10000.0))


@pytest.mark.parametrize(
    ("hidden", "heads", "kv_heads", "head_dim", "wanted"),
    [
        (2560, 32, 8, 128, 128),
        (640, 4, 1, 256, 256),
        (5120, 32, 8, 128, 128),
        (5120, 32, 8, None, 160),
        (64, 4, 1, None, 16),
    ],
)
def test_f03_head_dim_is_the_configs_own_and_only_else_hidden_by_heads(
    hidden: int, heads: int, kv_heads: int, head_dim: int | None, wanted: int
) -> None:
    config = read(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim)
    assert config.head_dim == wanted


def test_without_a_number_of_kv_heads_there_are_as_many_as_heads() -> None:
    assert read(num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_f07_llama3_scaling_is_read_under_all_its_spellings(spelling: str, place: str) -> None:
    config = read(**{place: {spelling: "llama3", **LLAMA3}})
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 8192}
    assert config.rope == Rope(theta=10000.0, kind="llama3", **numbers)


def test_theta_is_read_from_rope_parameters_too() -> None:
    config = read(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 500000})
    assert config.rope == Rope(theta=500000.0)


@pytest.mark.parametrize(
    ("kind", "said", "bias", "output_bias", "qk_norm"),
    [
        ("llama", None, False, False, False),
        ("llama", True, True, True, False),
        ("mistral", None, False, False, False),
        ("qwen2", None, True, False, False),
        ("qwen3", False, False, False, True),
        ("qwen3", True, True, True, True),
    ],
)
def test_each_family_has_its_own_biases_and_norms(
    kind: str, said: bool | None, bias: bool, output_bias: bool, qk_norm: bool
) -> None:
    config = read(model_type=kind, attention_bias=said)
    assert (config.attention_bias, config.attention_output_bias, config.qk_norm) == (bias, output_bias, qk_norm)


@pytest.mark.parametrize(
    ("kind", "changes", "wanted"),
    [
        ("mistral", {"sliding_window": 64}, 64),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {"sliding_window": 128}, None),  # no shorter than the context: it changes nothing
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}, None),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, 64),
        ("qwen3", {"sliding_window": 64, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
        ("qwen3", {"sliding_window": 64, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 64),
    ],
)
def test_a_sliding_window_is_read_where_it_is_in_force(kind: str, changes: dict[str, Any], wanted: int | None) -> None:
    assert read(model_type=kind, **changes).sliding_window == wanted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mixtral", "num_local_experts": 4096, "num_experts_per_tok": 2, "num_hidden_layers": 1024},
         "1024 layers of 4096 experts are more than a model has"),
        ({"model_type": "gpt_neox"}, "architecture 'gpt_neox' is not supported"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": 7}, "model_type is not a str"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor 0.0 is not supported"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.0}}, "partial_rotary_factor 0.0"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.0}, "0 of 8 numbers of a head turn"),
        ({"model_type": "phi3", "partial_rotary_factor": 1.5}, "12 of 8 numbers of a head turn"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 4}}, "'proportional' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor is missing or not above 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 1}}, "beta_slow 1.0"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4}}, "low_freq_factor 4.0"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "must be 4 positive numbers"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": "all"}}, "short_factor is not a list of numbers"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 0}}, "rotary scaling factor is 0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor is missing or not above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is not an object"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 32.0}, "hidden_size is not a int"),
        ({"hidden_size": True}, "hidden_size is not a int"),
        ({"num_hidden_layers": 10**9}, "num_layers is 1000000000"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_attention_heads": 0}, "num_heads is 0"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"num_key_value_heads": 8}, "num_kv_heads is 8"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        (QWEN2_WINDOW | {"layer_types": ["full_attention", "chunked_attention"]}, "has 'chunked_attention'"),
        (QWEN2_WINDOW | {"layer_types": ["full_attention"]}, "not a list of one kind a layer"),
        (QWEN2_WINDOW | {"layer_types": "full_attention"}, "not a list of one kind a layer"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers is not a 0 or 1 for each layer"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2]}, "no_rope_layers is not a 0 or 1 for each layer"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention is not"),
        ({"model_type": "gemma2", "hidden_activation": "gelu"}, "hidden_act 'gelu'"),
        ({"model_type": "gemma2", "final_logit_softcapping": -1.0}, "logit_soft_cap is -1.0"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 5.0}, "attn_logit_softcapping is not supported"),
        ({"model_type": "mixtral"}, "num_local_experts is missing"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "num_experts_per_tok is missing"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}, "experts per token are 5 of 4"),
        ({"model_type": "mixtral", "num_local_experts": 10**9, "num_experts_per_tok": 2}, "experts is 1000000000"),
        (QWEN3_MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval is 0"),
        ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 0}, "_window_pattern is 0"),
        (QWEN3_MOE | {"moe_intermediate_size": -1}, "intermediate_size of experts is -1"),
        ({"model_type": "gemma3"}, "architecture 'gemma3' is not supported"),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 64}}, "text_config: num_hidden_layers is missing"),
    ],
)
def test_what_we_do_not_do_or_makes_no_sense_is_refused_with_its_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as refusal:
        read(**changes)
    assert str(refusal.value).startswith("config.json")
