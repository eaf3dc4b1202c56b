"""Every family and every kind of rotary positions against Hugging Face's implementation: the same logits however tokens
are cut into steps."""
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from against_transformers import LENGTHS, TINY, Tried, random_model, try_out
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hamdam.engine.loading.folder_config import model_config
from hamdam.engine.loading.json_object import JsonObject
from hamdam.engine.models.config import ModelConfig
from hamdam.engine.policy.batch import Batch, Row

SOME = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0}
GPT_OSS_YARN = YARN | {"beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}


UNSAID = (
    LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Phi3Config, SmolLM3Config, Gemma2Config, Gemma3TextConfig,
    MixtralConfig, Qwen3MoeConfig, GptOssConfig,
)  # fmt: skip


def read(said: dict[str, Any]) -> ModelConfig:
    config = model_config(JsonObject("config.json", said))
    return replace(config, rotary_dim=config.turning)  # all of a head is a part of it, too


def long(*, original: int, pairs: int, **more: Any) -> dict[str, Any]:
    short, many = [1.0 + 0.1 * i for i in range(pairs)], [2.0 + 0.5 * i for i in range(pairs)]
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": many, **more}
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


FAMILIES: dict[str, PreTrainedConfig] = {
    "linear": LlamaConfig(**TINY, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "dynamic-unstretched": LlamaConfig(**TINY, rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
    "llama3": LlamaConfig(**TINY, rope_scaling=LLAMA3, rope_theta=500.0),
    "yarn": LlamaConfig(**TINY, rope_scaling=YARN),
    "yarn-mscale": LlamaConfig(**TINY, rope_scaling=YARN | {"mscale": 2.0, "mscale_all_dim": 0.5}),
    "yarn-factor": Qwen3Config(**TINY, head_dim=8, rope_scaling=YARN | {"attention_factor": 1.3, "truncate": False}),
    "longrope-long": Phi3Config(**TINY, **SOME, **long(original=16, pairs=4)),
    "longrope-short": Phi3Config(**TINY, **SOME, **long(original=256, pairs=4, attention_factor=1.2)),
    "phi3": Phi3Config(**TINY, **SOME),
    "phi3-window": Phi3Config(**TINY, **SOME, sliding_window=20),
    "phi3-long-window-tied": Phi3Config(**TINY, **SOME, sliding_window=200, tie_word_embeddings=True),
    "phi4-partial": Phi3Config(
        **TINY | {"hidden_size": 64, "num_attention_heads": 4}, **SOME, partial_rotary_factor=0.75,
        **long(original=16, pairs=6),
    ),
    "partial-one-pair": Phi3Config(**TINY | {"num_attention_heads": 4}, **SOME, partial_rotary_factor=0.2),
    "smollm3": SmolLM3Config(**TINY | {"num_hidden_layers": 4}, **SOME),
    "smollm3-listed": SmolLM3Config(**TINY, **SOME, no_rope_layers=[0, 1, 0], attention_bias=True),
    "smollm3-untied": SmolLM3Config(**TINY, **SOME, no_rope_layer_interval=3, tie_word_embeddings=False),
    "smollm3-window": SmolLM3Config(
        **TINY, **SOME, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=9
    ),
    "qwen2-last-layers": Qwen2Config(**TINY, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen2-all-full": Qwen2Config(**TINY, use_sliding_window=True, sliding_window=20),
    "qwen3-kinds": Qwen3Config(
        **TINY, head_dim=16, use_sliding_window=True, sliding_window=20, attention_bias=True,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "mistral-nemo": MistralConfig(
        **TINY | {"hidden_size": 40, "num_attention_heads": 4}, head_dim=8, sliding_window=None
    ),
    "qwen3-moe": Qwen3MoeConfig(
        **TINY, head_dim=8, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
    ),
    "qwen3-moe-sparse": Qwen3MoeConfig(
        **TINY | {"num_hidden_layers": 4}, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
        decoder_sparse_step=2, mlp_only_layers=[3],
    ),
    "mixtral": MixtralConfig(**TINY, **EXPERTS, sliding_window=24),
    "mixtral-no-window": MixtralConfig(**TINY, **EXPERTS, sliding_window=None, tie_word_embeddings=True, head_dim=20),
    "gemma2": Gemma2Config(
        **TINY, **SOME, head_dim=16, sliding_window=12, query_pre_attn_scalar=20, attn_logit_softcapping=4.0,
        final_logit_softcapping=3.0,
    ),
    "gemma2-uncapped": Gemma2Config(
        **TINY, **SOME, head_dim=16, sliding_window=4096, attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "gemma3": Gemma3TextConfig(
        **TINY | {"num_hidden_layers": 4}, **SOME, head_dim=16, sliding_window=12, sliding_window_pattern=3,
        query_pre_attn_scalar=20,
    ),
    "gemma3-scaled": Gemma3TextConfig(
        **TINY, **SOME, head_dim=16, sliding_window=300,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "gemma3-pictures": Gemma3Config(
        text_config=TINY | SOME | {"head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 20},
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        },
        mm_tokens_per_image=4,
    ),
    "gpt-oss-long-window": GptOssConfig(
        **TINY, **SOME, **EXPERTS, head_dim=20, sliding_window=100, rope_parameters={"rope_type": "default"},
        tie_word_embeddings=True,
    ),
    "gpt-oss": GptOssConfig(**TINY, **SOME, **EXPERTS, head_dim=8, sliding_window=12, rope_parameters=GPT_OSS_YARN),
}  # fmt: skip


REQUIRED = (
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "rms_norm_eps", "num_local_experts", "num_experts", "num_experts_per_tok",
    "moe_intermediate_size", "rope_parameters",
)  # fmt: skip


def as_saved(config: PreTrainedConfig) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return said


def of_older_days(said: dict[str, Any]) -> dict[str, Any]:
    """The same as transformers 4 wrote it: rope_theta, and rope_scaling with a `type`, or null."""
    said = dict(said)
    if "text_config" in said:
        said["text_config"] = of_older_days(said["text_config"])
    if (rope := said.pop("rope_parameters", None)) is not None:
        scaling = dict(rope.get("full_attention", rope))
        if "sliding_attention" in rope:
            said["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        said["rope_theta"] = scaling.pop("rope_theta")
        if "partial_rotary_factor" in scaling:
            said["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
        scaling["type"] = scaling.pop("rope_type")
        said["rope_scaling"] = None if scaling["type"] == "default" else scaling
    return said


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_says_the_same_in_the_spelling_of_transformers_4(family: str) -> None:
    said = as_saved(FAMILIES[family])
    assert "rope_parameters" in said.get("text_config", said)
    assert read(of_older_days(said)) == read(said)


@pytest.mark.parametrize("family", UNSAID, ids=lambda family: family.model_type)
@pytest.mark.parametrize("more", [{}, {"use_sliding_window": True}, {"tie_word_embeddings": True}], ids=str)
def test_what_a_config_leaves_unsaid_is_what_transformers_takes(
    family: type[PreTrainedConfig], more: dict[str, Any]
) -> None:
    """For a context that is longer than any usual window."""
    sizes = TINY | EXPERTS | {"num_experts": 5, "num_hidden_layers": 8, "head_dim": 8, "moe_intermediate_size": 32}
    sizes |= {"max_position_embeddings": 1 << 17, "rms_norm_eps": 1e-5}
    whole = as_saved(family(**sizes, **SOME, **more))
    said = {key: whole[key] for key in (*REQUIRED, "head_dim", "max_position_embeddings") if key in whole} | more
    assert read(said) == read(whole)
    assert read(said | {"sliding_window": None}).sliding_window is None


@pytest.fixture(params=FAMILIES)
def tried(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    model = random_model(FAMILIES[request.param])
    served_for_the_longest(model, 256)
    return try_out(model, tmp_path, monkeypatch)


def served_for_the_longest(model: Any, context: int) -> None:
    """transformers takes another table for each text by its length, and turns stored keys as they were turned before.
    Ours is one for all, that of the longest text that is served."""
    rope = getattr(model.config, "rope_parameters", {})
    if rope.get("rope_type") in ("dynamic", "longrope"):
        rotary = model.model.rotary_emb
        rotary.inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](
            model.config, None, seq_len=context
        )
        rotary.rope_type = "default"


def test_a_whole_prompt_in_one_step(tried: Tried) -> None:
    tried.step(*LENGTHS)


def test_a_prompt_in_chunks_and_then_one_token_after_another(tried: Tried) -> None:
    for count in (7, 16, 1, 1, 1, 20, 1, 1, 2):
        tried.step(count)


def test_prefill_and_decode_of_several_in_one_step(tried: Tried) -> None:
    for counts in ((20, 5, 0), (1, 11, 40), (1, 1, 0), (38, 0, 0), (1, 0, 0)):
        tried.step(*counts)


def test_a_prefix_whose_blocks_another_conversation_has_computed(tried: Tried) -> None:
    tried.step(LENGTHS[0])
    tried.share()
    tried.step(0, 5, 40)
    tried.step(0, 1)


def test_dynamic_scaling_stretches_to_the_served_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(**TINY | {"max_position_embeddings": 32}, rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    model = random_model(config)
    served_for_the_longest(model, 64)
    tried = try_out(model, tmp_path, monkeypatch, max_context=64)
    for counts in ((30, 17, 40), (1, 0, 0), (30, 0, 0)):
        tried.step(*counts)


@pytest.mark.parametrize("family", ["phi4-partial", "gemma2", "gemma3", "gpt-oss"])
def test_f14_bfloat16_costs_no_more_than_it_costs_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    model = random_model(FAMILIES[family])
    served_for_the_longest(model, 256)
    tried = try_out(model, tmp_path, monkeypatch, dtype="bfloat16")
    tried.runner.run(Batch([Row(one, 0, len(one.ids), sample=True) for one in tried.sequences]))
    right = torch.stack([logits[-1] for logits in tried.right])
    model.bfloat16()
    with torch.inference_mode():
        theirs = torch.stack([model(torch.tensor(one.ids)[None]).logits[0, -1].float() for one in tried.sequences])
    ours, cost = ((found - right).square().mean().sqrt() for found in (tried.ops.logits, theirs))
    assert ours < 1.5 * cost < 0.3 * right.std()
