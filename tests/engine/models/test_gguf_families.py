"""The families as GGUF files, written by rules of their own under the names that the format's package has for them: the
logits of transformers."""
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from against_transformers import LENGTHS, TINY, random_model, try_out
from kept_bytes import kept_bytes, said_bytes
from tiny_models import add_text
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.gguf import read_header

Arch, Kind, Rows = gguf.MODEL_ARCH, gguf.GGMLQuantizationType, np.ndarray
SOME = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
EVEN = TINY | {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}  # rows of whole blocks
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 150000.0,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
FACTORS = {"short_factor": [1.0 + 0.1 * i for i in range(6)], "long_factor": [2.0 + 0.5 * i for i in range(6)]}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500.0,
}  # fmt: skip
FAMILIES: dict[str, tuple[Arch, PreTrainedConfig]] = {
    "llama": (Arch.LLAMA, LlamaConfig(**EVEN | {"num_key_value_heads": 4}, attention_bias=True)),
    "llama3": (Arch.LLAMA, LlamaConfig(**EVEN, rope_parameters=LLAMA3)),
    "smollm2": (Arch.LLAMA, LlamaConfig(**EVEN, tie_word_embeddings=True)),
    "mistral": (Arch.LLAMA, MistralConfig(**EVEN, head_dim=8, sliding_window=None)),
    "qwen2": (Arch.QWEN2, Qwen2Config(**EVEN, tie_word_embeddings=True)),
    "qwen3": (Arch.QWEN3, Qwen3Config(**EVEN, head_dim=24, rope_parameters=YARN | {"truncate": True})),
    "phi3": (Arch.PHI3, Phi3Config(**EVEN, **SOME, sliding_window=20)),
    "phi4": (
        Arch.PHI3,
        Phi3Config(
            **EVEN, **SOME, tie_word_embeddings=True, partial_rotary_factor=0.75, original_max_position_embeddings=16,
            rope_scaling={"rope_type": "longrope", **FACTORS},
        ),
    ),
    "smollm3": (Arch.SMOLLM3, SmolLM3Config(**EVEN | {"num_hidden_layers": 4}, **SOME)),
    "mixtral": (Arch.LLAMA, MixtralConfig(**EVEN, num_local_experts=5, num_experts_per_tok=2)),
    "qwen3-moe": (
        Arch.QWEN3MOE,
        Qwen3MoeConfig(
            **EVEN, head_dim=8, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
        ),
    ),
    "gemma2": (
        Arch.GEMMA2,
        Gemma2Config(
            **EVEN, **SOME, head_dim=16, sliding_window=12, query_pre_attn_scalar=16, attn_logit_softcapping=4.0,
            final_logit_softcapping=3.0,
        ),
    ),
    "gemma3": (
        Arch.GEMMA3,
        Gemma3TextConfig(
            **EVEN | {"num_hidden_layers": 7}, **SOME, head_dim=16, sliding_window=12, query_pre_attn_scalar=16,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
    ),
    "gpt-oss": (
        Arch.GPT_OSS,
        GptOssConfig(
            **EVEN, **SOME, head_dim=16, sliding_window=12, rope_parameters=YARN, num_local_experts=5,
            num_experts_per_tok=2,
        ),
    ),
}


def write(path: Path, arch: Arch, model: PreTrainedModel, kind: Kind = Kind.F32) -> Path:
    """kind: of the matrices."""
    config, name = model.config, gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(path, name)
    keys = {
        "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, **keys_of(arch, config),
    }
    for key, value in keys.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{name}.{key}", value)
    add_text(writer)
    rope = config.rope_parameters
    if (kind_of_rope := rope.get("full_attention", rope)["rope_type"]) in ("yarn", "linear"):
        writer.add_string(f"{name}.rope.scaling.type", kind_of_rope)
    elif kind_of_rope == "llama3":
        plain = rope["rope_theta"] ** -(np.arange(0, 16, 2, dtype=np.float32) / 16)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, None)
        writer.add_tensor("rope_freqs.weight", plain / scaled.numpy())
    if "rope.scaling.attn_factor" in keys:
        for which in ("long", "short"):
            factors = np.array(config.rope_parameters[f"{which}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)
    for stored, values in stored_tensors(arch, model).items():
        if values.ndim > 1 and stored.endswith(".weight") and "gate_inp" not in stored:
            writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def keys_of(arch: Arch, config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    keys: dict[str, Any] = {"rope.freq_base": rope.get("full_attention", rope)["rope_theta"]}
    if getattr(config, "head_dim", None):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if getattr(config, "sliding_window", None):
        keys["attention.sliding_window"] = config.sliding_window
    if arch == Arch.PHI3:
        head_dim = config.hidden_size // config.num_attention_heads
        keys["rope.dimension_count"] = int(head_dim * rope["partial_rotary_factor"])
        if rope["rope_type"] == "longrope":
            factor = (1 + np.log(256 / 16) / np.log(16)) ** 0.5
            keys |= {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": float(factor)}
    if arch == Arch.GEMMA2:
        keys |= {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    if arch == Arch.GEMMA3:
        keys["rope.scaling.factor"] = 8.0
    if rope.get("rope_type") == "yarn":
        keys |= {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    if experts := getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None):
        keys |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
        keys["expert_feed_forward_length"] = getattr(config, "moe_intermediate_size", config.intermediate_size)
    return keys


def stored_tensors(arch: Arch, model: PreTrainedModel) -> dict[str, Rows]:
    """As convert_hf_to_gguf.py leaves them: experts apart in gate and up, norms of Gemma with their 1, rows of q and k
    of what is converted like Llama as rotary pairs."""
    config, found = model.config, {}
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        wide = getattr(config, "moe_intermediate_size", config.intermediate_size)
        parts: dict[str, Rows] = {name: values}
        if ".experts.gate_up_proj" in name and arch == Arch.GPT_OSS:
            turned = values if values.ndim == 2 else values.swapaxes(1, 2)
            parts = {name.replace("gate_up", "gate"): turned[:, ::2], name.replace("gate_up", "up"): turned[:, 1::2]}
        elif ".experts.gate_up_proj" in name:
            parts = {name.replace("gate_up", "gate"): values[:, :wide], name.replace("gate_up", "up"): values[:, wide:]}
        elif ".experts.down_proj" in name and arch == Arch.GPT_OSS and values.ndim == 3:
            parts = {name: values.swapaxes(1, 2)}
        elif "norm" in name and arch in (Arch.GEMMA2, Arch.GEMMA3):
            parts = {name: values + 1}
        elif arch in (Arch.LLAMA, Arch.SMOLLM3) and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            parts = {name: halves.swapaxes(1, 2).reshape(values.shape)}
        for part, its in parts.items():
            if part == "lm_head.weight" and config.tie_word_embeddings:
                continue
            stem, _, suffix = part.rpartition(".") if part.endswith((".weight", ".bias")) else (part, "", "weight")
            if stem.endswith("_bias"):
                stem, suffix = stem.removesuffix("_bias"), "bias"
            if arch == Arch.LLAMA and ".gate_proj" not in stem:
                stem = stem.replace(".mlp.gate", ".block_sparse_moe.gate")
            stored = names.get_name(stem)
            assert stored is not None, stem
            found[f"{stored}.{suffix}"] = np.ascontiguousarray(its)
    return found


STORED = [
    (Kind.F32, "float32"), (Kind.F16, "float32"), (Kind.Q8_0, "float32"), (Kind.Q8_0, "auto"), (Kind.Q4_1, "auto"),
]  # fmt: skip


def round_as_stored(model: PreTrainedModel, kind: Kind) -> None:
    """The matrices become what is left of them in blocks of this kind, which can then be stored without loss."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not name.endswith(("mlp.gate.weight", "router.weight", "_bias")):
            turned = ".experts." in name and model.config.model_type == "gpt_oss"  # [experts, in, out]
            rows = parameter.data.mT if turned else parameter.data
            values = gguf.quants.dequantize(gguf.quants.quantize(rows.contiguous().numpy(), kind), kind)
            rows.copy_(torch.from_numpy(values.reshape(rows.shape).astype(np.float32)))


@pytest.mark.parametrize(("kind", "dtype"), STORED, ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_has_the_logits_of_the_model_whose_weights_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kind: Kind, dtype: str
) -> None:
    """Whether they become floats, or (auto) stay as they are, in the bytes that `check` says."""
    arch, config = FAMILIES[family]
    model = random_model(config)
    round_as_stored(model, kind)
    rope = model.config.rope_parameters
    if rope.get("rope_type") == "longrope":  # the list for the longest text that is served, for all of them
        rotary = model.model.rotary_emb
        rotary.inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS["longrope"](model.config, None, seq_len=256)
        rotary.rope_type = "default"
    path = write(tmp_path / "model.gguf", arch, model, kind)
    tried = try_out(model, path, monkeypatch, dtype)
    for counts in ((20, 5, 0), (1, 11, 40), (1, 1, 0), (38, 0, 0), (1, 0, 0)):
        tried.step(*counts)
    kept = kept_bytes(tried.runner._model)
    assert said_bytes(path, dtype)[1] == kept
    if dtype == "auto":
        assert kept < 1.1 * sum(info.nbytes for info in read_header(path).tensors.values())
    assert tried.done[0] == LENGTHS[0]


@pytest.mark.parametrize("family", ["phi4", "mixtral"])
def test_the_blocks_of_what_is_taken_apart_and_ordered_are_its_numbers(tmp_path: Path, family: str) -> None:
    arch, config = FAMILIES[family]
    whole, stored = (
        open_checkpoint(write(tmp_path / f"{kind.name}.gguf", arch, random_model(config), kind))
        for kind in (Kind.F32, Kind.Q8_0)
    )
    quantised = 0
    for name in whole.weights.formats:
        blocks = stored.quantized(name)
        if blocks is not None:
            values = gguf.quants.dequantize(blocks.blocks.reshape(len(blocks.blocks), -1), Kind.Q8_0)
            assert np.array_equal(values, stored.array(name)), name
            part = stored.quantized(name, range(4, 9))
            assert part is not None
            assert np.array_equal(part.blocks, blocks.blocks[4:9])
            assert np.array_equal(stored.array(name, range(4, 9)), values[4:9])
            quantised += 1
        np.testing.assert_allclose(stored.array(name), whole.array(name), atol=0.02, err_msg=name)
    assert quantised == sum(len(shape) == 2 and "mlp.gate." not in name for name, shape in whole.weights.shapes.items())


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "gpt-oss"])
def test_gate_and_up_of_all_experts_may_be_one_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """As convert_hf_to_gguf.py writes them when it is asked to."""
    arch, config = FAMILIES[family]
    apart = open_checkpoint(write(tmp_path / "apart.gguf", arch, random_model(config)))
    parts = stored_tensors

    def fused(arch: Arch, model: PreTrainedModel) -> dict[str, Rows]:
        found = parts(arch, model)
        for name in [name for name in found if "ffn_gate_exps" in name]:
            both = [found.pop(name), found.pop(name.replace("gate", "up"))]
            found[name.replace("gate", "gate_up")] = np.concatenate(both, 1)
        return found

    monkeypatch.setitem(globals(), "stored_tensors", fused)
    together = open_checkpoint(write(tmp_path / "together.gguf", arch, random_model(config)))
    assert together.weights.shapes.keys() == apart.weights.shapes.keys()
    for name in apart.weights.shapes:
        assert np.array_equal(together.array(name), apart.array(name)), name


def without_a_window(path: Path, family: str) -> Path:
    arch, config = FAMILIES[family]
    model = random_model(config)
    model.config.sliding_window = None
    return write(path, arch, model)


def test_a_file_without_a_window_has_the_usual_one_of_its_family_or_none_or_is_refused(tmp_path: Path) -> None:
    """The first files of Gemma 2 do not say it; a Gemma 3 may be without."""
    gemma2 = open_checkpoint(without_a_window(tmp_path / "2.gguf", "gemma2")).config
    assert (gemma2.sliding_window, gemma2.full_layers) == (4096, {1})
    gemma3 = open_checkpoint(without_a_window(tmp_path / "3.gguf", "gemma3")).config
    assert (gemma3.sliding_window, {gemma3.rope_of(layer) for layer in range(7)}) == (None, {gemma3.rope})
    with pytest.raises(ModelError, match=r"gpt-oss\.attention\.sliding_window is missing"):
        open_checkpoint(without_a_window(tmp_path / "oss.gguf", "gpt-oss"))


def test_the_largest_gemmas_scale_scores_by_another_width(tmp_path: Path) -> None:
    for layers, scale in ((46, 16.0**-0.5), (2, None)):
        config = Gemma2Config(**EVEN | {"num_hidden_layers": layers}, **SOME, head_dim=32)
        path = write(tmp_path / f"{layers}.gguf", Arch.GEMMA2, random_model(config))
        assert open_checkpoint(path).config.attention_scale == scale
