"""A GGUF file as a Checkpoint: numbers, names, the order of q and k rows, tied heads, rotary factors, end tokens."""
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_models
import torch
from tiny_models import CONFIG, random_tensors, write_gguf

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint

BIASED = CONFIG | {"attention_bias": True}
QWEN2 = CONFIG | {"model_type": "qwen2"}
MISTRAL3 = CONFIG | {"model_type": "mistral3"}
QWEN3 = CONFIG | {"model_type": "qwen3", "head_dim": 16}
Q = gguf.GGMLQuantizationType
WINDOW = {"llama.attention.sliding_window": 16}


@pytest.mark.parametrize(
    "config", [CONFIG, BIASED, MISTRAL3, QWEN2, QWEN3], ids=["llama", "llama-bias", "mistral3", "qwen2", "qwen3"]
)
def test_f04_tensors_come_back_under_their_names_in_their_order(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = random_tensors(config)
    found = dict(open_checkpoint(write_gguf(tmp_path / "m.gguf", config, tensors)).tensors())
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert torch.equal(found[name], values), name


def test_f04_a_llama_file_stores_the_rows_of_a_head_as_pairs_and_a_qwen2_file_does_not(tmp_path: Path) -> None:
    """The rows as numbers: with 2 heads of 4, rows 0 … 7 lie in a llama file as 0 2 1 3 4 6 5 7."""
    small = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    for kind, stored in (("llama", [0, 2, 1, 3, 4, 6, 5, 7]), ("qwen2", [0, 1, 2, 3, 4, 5, 6, 7])):
        config = CONFIG | small | {"model_type": kind}
        tensors = random_tensors(config)
        rows = torch.arange(8.0)[:, None].expand(8, 8).contiguous()
        tensors["model.layers.0.self_attn.q_proj.weight"] = tensors["model.layers.0.self_attn.k_proj.weight"] = rows
        path = write_gguf(tmp_path / f"{kind}.gguf", config, tensors)
        raw = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
        assert raw["blk.0.attn_q.weight"][:, 0].tolist() == stored
        found = dict(open_checkpoint(path).tensors())
        assert torch.equal(found["model.layers.0.self_attn.q_proj.weight"], rows)
        assert torch.equal(found["model.layers.0.self_attn.k_proj.weight"], rows)


def test_the_config_is_read_from_the_keys_of_the_architecture(tmp_path: Path) -> None:
    config = open_checkpoint(write_gguf(tmp_path / "m.gguf", QWEN3)).config
    assert (config.architecture, config.num_layers) == ("qwen3", 2)
    assert (config.hidden_size, config.intermediate_size) == (32, 64)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (4, 2, 16, 264)
    assert (config.rms_norm_eps, config.rope.theta, config.max_context) == (np.float32(1e-5), 10000.0, 128)
    assert (config.qk_norm, config.attention_bias, config.tie_word_embeddings) == (True, False, False)
    config = open_checkpoint(write_gguf(tmp_path / "n.gguf", QWEN2)).config
    assert (config.head_dim, config.qk_norm) == (8, False)
    assert (config.attention_bias, config.attention_output_bias) == (True, False)


def test_f02_e_without_output_weight_the_head_is_the_embedding(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG, random_tensors(CONFIG, head=False)))
    assert checkpoint.config.tie_word_embeddings
    assert "lm_head.weight" not in dict(checkpoint.tensors())


def test_f02_missing_and_unexpected_tensors_are_listed(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    path = write_gguf(tmp_path / "m.gguf", CONFIG, tensors, extra={"blk.1.odd.weight": np.ones(4, np.float32)})
    listed = r"missing: model\.layers\.1\.mlp\.up_proj\.weight; unexpected: blk\.1\.odd\.weight"
    with pytest.raises(ModelError, match=listed):
        open_checkpoint(path)


def test_a_tensor_that_is_there_by_itself_and_within_another_is_refused(tmp_path: Path) -> None:
    """Whichever came last would be taken, and the other be gone unnoticed."""
    fused = {"blk.1.attn_qkv.weight": np.zeros((64, 32), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", CONFIG | {"model_type": "qwen2"}, extra=fused)
    with pytest.raises(ModelError, match=r"'blk\.1\.attn_qkv\.weight' gives '.*q_proj\.weight', which is there"):
        open_checkpoint(path)


def test_a_tensor_of_another_shape_than_the_config_asks_for_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG) | {"model.norm.weight": torch.ones(31)}
    with pytest.raises(ModelError, match=r"model\.norm\.weight has the shape \[31\], the config asks for \[32\]"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG, tensors))


def test_f06_a_file_of_mixed_types_loads_and_differs_by_the_rounding_only(tmp_path: Path) -> None:
    config = CONFIG | {"hidden_size": 256, "intermediate_size": 256}
    tensors = random_tensors(config)
    kinds = {"q_proj.weight": Q.Q8_0, "down_proj.weight": Q.Q4_1, "gate_proj.weight": Q.Q5_0}
    kinds |= {"embed_tokens.weight": Q.F16, "up_proj.weight": Q.BF16}
    found = dict(open_checkpoint(write_gguf(tmp_path / "m.gguf", config, tensors, kinds=kinds)).tensors())
    assert found["model.embed_tokens.weight"].dtype == torch.float16
    assert found["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16
    assert found["model.layers.0.self_attn.q_proj.weight"].dtype == torch.float32
    for name, values in tensors.items():
        assert torch.nn.functional.cosine_similarity(found[name].float().ravel(), values.ravel(), dim=0) > 0.99, name


def test_f06_a_file_of_k_types_loads_with_the_values_of_the_formats_own_package(tmp_path: Path) -> None:
    """What is called Q4_K_M has Q4_K, Q6_K and F32 in one file. A row here has three blocks."""
    config = CONFIG | {"model_type": "qwen2", "hidden_size": 768, "num_hidden_layers": 1}
    kinds = {"q_proj.weight": Q.Q4_K, "up_proj.weight": Q.Q5_K, "v_proj.weight": Q.Q6_K}
    shapes = {name: tuple(values.shape) for name, values in random_tensors(config).items()}
    chance, raw = np.random.default_rng(6), {}
    for end, kind in kinds.items():
        [name] = [name for name in shapes if name.endswith(end)]
        blocks = chance.integers(0, 256, (shapes[name][0] * 3, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        blocks[:, [1, 3, -1]] = 0x20  # the high bytes of the scales: small numbers, whatever the low ones are
        raw[name] = blocks.reshape(shapes[name][0], -1)
    found = dict(open_checkpoint(write_gguf(tmp_path / "m.gguf", config, kinds=kinds, raw=raw)).tensors())
    for name, blocks in raw.items():
        [kind] = [kind for end, kind in kinds.items() if name.endswith(end)]
        assert np.array_equal(found[name].numpy(), gguf.quants.dequantize(blocks, kind))


def test_f06_a_tensor_larger_than_a_chunk_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = random_tensors(CONFIG)
    path = write_gguf(tmp_path / "m.gguf", CONFIG, tensors, kinds={"down_proj.weight": Q.Q8_0})
    whole = dict(open_checkpoint(path).tensors())
    monkeypatch.setattr("hamdam.engine.loading.gguf.weights._CHUNK_BYTES", 34 * 7)  # 7 blocks, and 64 in the tensor
    parts = dict(open_checkpoint(path).tensors())
    assert all(torch.equal(parts[name], whole[name]) for name in tensors)


@pytest.mark.parametrize("arch", ["gpt2", "llama4", "mamba"])
def test_an_unknown_architecture_is_refused_by_name(arch: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"architecture '{arch}' is not supported"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", CONFIG | {"model_type": arch}))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama.expert_count": 8}, "^m.gguf: llama.expert_used_count is missing"),
        ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "experts per token are 9 of 8"),
        ({"split.count": 3}, "split"),
        ({"llama.rope.dimension_count": 4}, "part of the head"),
        ({"llama.attention.value_length": 16}, "another width"),
        ({"llama.rope.scaling.type": "spiral", "llama.rope.scaling.factor": 4.0}, "'spiral' is not supported"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}, "must be 4 positive numbers"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, "scaling factor is 0.0"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float("nan")}, "scaling factor is nan"),
        ({"llama.block_count": 2**32 - 1}, "num_layers is 4294967295"),
        ({"llama.attention.head_count": 0}, "num_heads is 0"),
        ({"llama.attention.head_count": "many"}, "head_count is not a int"),
        ({"llama.attention.head_count_kv": 3}, "do not divide"),
        ({"llama.rope.freq_base": float("nan")}, "rope_theta is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "rms_norm_eps"),
        ({"llama.attention.causal": False}, "llama.attention.causal False is not supported"),
        ({"llama.attention.temperature_scale": 0.1}, "llama.attention.temperature_scale 0.1"),  # of a Ministral 3
        ({"llama.logit_scale": 0.5}, "llama.logit_scale 0.5 is not supported"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier 0.1"),
        ({"llama.rope.freq_base_swa": 5.0}, "freq_base_swa is not supported in this architecture"),
        (WINDOW | {"llama.attention.sliding_window_pattern": [True]}, "not a yes or no for each layer"),
        (WINDOW | {"llama.attention.sliding_window_pattern": [2, 0]}, "not a yes or no for each layer"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id is 9999"),
        ({"tokenizer.ggml.eot_token_id": -1}, "eot_token_id is -1"),
        ({"tokenizer.ggml.bos_token_id": 2**63, "tokenizer.ggml.add_bos_token": True}, "bos_token_id is 92233720"),
    ],
)
def test_what_we_do_not_do_or_makes_no_sense_is_refused_with_its_name(
    metadata: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=words):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata=metadata))


def test_keys_of_other_architectures_count_for_nothing_where_they_change_nothing(tmp_path: Path) -> None:
    metadata = {"llama.attention.causal": True, "llama.logit_scale": 1.0, "llama.expert_shared_count": 0}
    metadata |= {"llama.rope.scaling.yarn_ext_factor": 1.0, "llama.rope.freq_base_swa": 10000.0}
    neutral = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata=metadata)).config
    assert neutral == open_checkpoint(write_gguf(tmp_path / "n.gguf")).config


@pytest.mark.parametrize(
    ("pattern", "full"),
    [(None, set()), (0, set()), (1, {0, 1, 2, 3}), (2, {1, 3}), (3, {2}), ([False, True, True, False], {0, 3})],
)
def test_a_pattern_says_which_layers_have_a_window(pattern: Any, full: set[int], tmp_path: Path) -> None:
    metadata = WINDOW if pattern is None else WINDOW | {"llama.attention.sliding_window_pattern": pattern}
    config = CONFIG | {"num_hidden_layers": 4}
    found = open_checkpoint(write_gguf(tmp_path / "m.gguf", config, metadata=metadata)).config
    assert (found.sliding_window, found.full_layers) == (16, full)


def test_linear_rotary_scaling_is_read_under_both_its_names(tmp_path: Path) -> None:
    new = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    for number, metadata in enumerate((new, {"llama.rope.scale_linear": 2.0})):
        config = open_checkpoint(write_gguf(tmp_path / f"{number}.gguf", metadata=metadata)).config
        assert (config.rope.kind, config.rope.factor) == ("linear", 2.0)
    none = write_gguf(tmp_path / "m.gguf", metadata={"llama.rope.scaling.type": "none"})
    assert open_checkpoint(none).config.rope.kind == "default"


def test_an_attention_factor_comes_on_top_of_yarns_own_and_goes_with_nothing_else(tmp_path: Path) -> None:
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    for number, factor in enumerate((1.0, 1.5)):
        said = yarn | {"llama.rope.scaling.attn_factor": factor}
        rope = open_checkpoint(write_gguf(tmp_path / f"{number}.gguf", metadata=said)).config.rope
        assert rope.original_context == 128
        assert rope.scores_factor == pytest.approx(factor * (0.1 * np.log(4) + 1))
    said = yarn | {"llama.rope.scaling.yarn_attn_factor": 1.3}  # Hugging Face's attention_factor, all of it
    assert open_checkpoint(write_gguf(tmp_path / "y.gguf", metadata=said)).config.rope.scores_factor == np.float32(1.3)
    with pytest.raises(ModelError, match="attn_factor with rotary scaling 'none' is not supported"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata={"llama.rope.scaling.attn_factor": 1.5}))


def test_f07_rope_freqs_become_divisors_and_all_ones_become_nothing(tmp_path: Path) -> None:
    factors = np.array([1, 1, 2.5, 8], np.float32)
    config = open_checkpoint(write_gguf(tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})).config
    assert config.rope.divisors == (1.0, 1.0, 2.5, 8.0)
    ones = write_gguf(tmp_path / "n.gguf", extra={"rope_freqs.weight": np.ones(4, np.float32)})
    assert open_checkpoint(ones).config.rope.divisors == ()
    with pytest.raises(ModelError, match="rope_freqs"):
        open_checkpoint(write_gguf(tmp_path / "o.gguf", extra={"rope_freqs.weight": np.ones(5, np.float32)}))
    with pytest.raises(ModelError, match="rotary factors must be 4 positive numbers"):
        open_checkpoint(write_gguf(tmp_path / "p.gguf", extra={"rope_freqs.weight": np.zeros(4, np.float32)}))


def test_f01_eos_eot_eom_and_the_templates_end_of_turn_are_one_set(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 8}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata=metadata))
    assert checkpoint.eos_ids == {0, 2, 7, 8}  # 2 is <|im_end|>, with which the template ends a turn
    assert checkpoint.eos_text == "<|endoftext|>"
    assert checkpoint.chat_template == tiny_models.CHATML


def test_f01_ends_that_a_file_has_no_key_for_are_known_by_name(tmp_path: Path) -> None:
    """Llama 3 ends an answer that calls a tool with `<|eom_id|>`; Qwen's plain texts end with `<|endoftext|>`."""
    tokens = [*tiny_models.TOKENS, "<|eom_id|>", "<|end_of_text|>"]
    metadata = {
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
    }  # fmt: skip
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata=metadata))
    assert checkpoint.eos_ids == {0, 2, len(tokens) - 2, len(tokens) - 1}


def test_bos_is_given_where_the_file_wants_it_and_its_text_always(tmp_path: Path) -> None:
    unsaid = open_checkpoint(write_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.bos_token_id": 1}))
    assert (unsaid.bos_id, unsaid.bos_text) == (None, "<|im_start|>")
    metadata = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True}
    assert open_checkpoint(write_gguf(tmp_path / "n.gguf", metadata=metadata)).bos_id == 1
    llama3 = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.pre": "llama-bpe"}
    assert open_checkpoint(write_gguf(tmp_path / "o.gguf", metadata=llama3)).bos_id == 1
    assert open_checkpoint(write_gguf(tmp_path / "p.gguf")).bos_text == ""


def test_arrays_are_the_tensors_in_float32_and_in_their_order(tmp_path: Path) -> None:
    kinds = {"q_proj.weight": Q.Q8_0, "down_proj.weight": Q.Q4_1}
    kinds |= {"embed_tokens.weight": Q.F16, "up_proj.weight": Q.BF16}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", kinds=kinds))
    arrays, tensors = dict(checkpoint.arrays()), dict(checkpoint.tensors())
    assert list(arrays) == list(tensors)
    for name, values in arrays.items():
        assert values.dtype == np.float32
        assert np.array_equal(values, tensors[name].float().numpy()), name


def test_reading_a_quantised_tensor_takes_little_more_memory_than_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hamdam.engine.loading.gguf.weights._CHUNK_BYTES", 34 * 64)
    path = write_gguf(tmp_path / "m.gguf", CONFIG | {"hidden_size": 512}, kinds={"down_proj.weight": Q.Q8_0})
    checkpoint = open_checkpoint(path)
    tracemalloc.start()
    try:
        values = checkpoint.array("model.layers.0.mlp.down_proj.weight")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.nbytes == 512 * 64 * 4
    assert peak < 1.5 * values.nbytes


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1, Q.Q8_0])
def test_the_blocks_of_a_quantised_matrix_come_with_its_rows_in_order(kind: Any, tmp_path: Path) -> None:
    config = CONFIG | {"hidden_size": 64}
    kinds = {"q_proj.weight": kind, "k_proj.weight": kind, "o_proj.weight": kind}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", config, kinds=kinds))
    for name in ("q_proj", "k_proj", "o_proj"):
        name = f"model.layers.1.self_attn.{name}.weight"
        found = checkpoint.quantized(name)
        assert found is not None
        rows, columns = found.shape
        assert found.format == kind.name == checkpoint.weights.formats[name]
        assert found.blocks.shape == (rows, columns // 32, gguf.GGML_QUANT_SIZES[kind][1])
        values = gguf.quants.dequantize(found.blocks.reshape(rows, -1), kind)
        assert np.array_equal(values, checkpoint.array(name))
    assert checkpoint.quantized("model.layers.1.self_attn.v_proj.weight") is None
    assert checkpoint.quantized("model.norm.weight") is None


def test_the_fingerprint_changes_with_one_weight_and_not_with_the_name(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    one, same = (open_checkpoint(write_gguf(tmp_path / name, CONFIG, tensors)) for name in ("a.gguf", "b.gguf"))
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] += 1
    other = open_checkpoint(write_gguf(tmp_path / "c.gguf", CONFIG, tensors))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert (one.name, len(one.fingerprint)) == ("a", 64)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelError, match="ended while it was read"):
        dict(checkpoint.tensors())


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert open_checkpoint(tmp_path).name == "m"
    write_gguf(tmp_path / "n.gguf")
    with pytest.raises(ModelError, match=r"2 \.gguf files"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nothing.gguf")


def test_a_model_is_opened_and_its_arrays_are_read_without_pytorch(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", kinds={"q_proj.weight": Q.Q4_1})
    program = """
import sys
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from hamdam.engine.loading.checkpoint import open_checkpoint
checkpoint = open_checkpoint(Path(sys.argv[1]))
assert len(list(checkpoint.arrays())) == 21
assert checkpoint.quantized("model.layers.0.self_attn.q_proj.weight")
assert "torch" not in sys.modules
next(checkpoint.tensors())
assert "torch" in sys.modules
"""
    here = str(Path(tiny_models.__file__).parent)  # where conftest.py makes `hamdam` importable
    command = [sys.executable, "-c", f"import conftest\n{program}", str(path)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": here}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
