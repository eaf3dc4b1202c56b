"""Every family against Hugging Face's implementation: the same logits however tokens are cut into steps."""
from pathlib import Path

import gguf
import pytest
import torch
from against_transformers import CPU, LENGTHS, TINY, Recording, Tried, random_model, try_out
from stepping import run, scheduler_for, sequence
from tiny_models import CONFIG, Tensors, random_tensors, write_folder, write_gguf
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution import model_runner
from hamdam.engine.execution.model_runner import load_runner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.models.transformer import Transformer
from hamdam.engine.policy.batch import Batch, Row
from hamdam.kernels.device import for_device

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, PreTrainedConfig] = {
    "llama-tied": LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama-biased": LlamaConfig(**TINY, attention_bias=True),
    "llama-3": LlamaConfig(**TINY, rope_scaling=LLAMA3, rope_theta=500.0),
    "llama-linear": LlamaConfig(**TINY, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "mistral-window": MistralConfig(**TINY, sliding_window=24),
    "qwen2": Qwen2Config(**TINY, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**TINY, head_dim=8),
    "qwen2-untied": Qwen2Config(**TINY, tie_word_embeddings=False),
    "mistral-long-window": MistralConfig(**TINY, sliding_window=200),
    "llama-head-dim-20": LlamaConfig(**TINY | {"hidden_size": 120}),
    "llama-2-mha": LlamaConfig(**TINY | {"num_key_value_heads": 6}),
    "f03-head-dim-above": Qwen3Config(**TINY | {"hidden_size": 40, "num_attention_heads": 8}, head_dim=16),
    "f03-head-dim-below": MistralConfig(**TINY | {"hidden_size": 40, "num_attention_heads": 4}, head_dim=8),
    "f03-one-kv-head": LlamaConfig(**TINY | {"num_key_value_heads": 1}),
}


@pytest.fixture(params=FAMILIES)
def tried(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    return try_out(random_model(FAMILIES[request.param]), tmp_path, monkeypatch)


def test_f03_a_whole_prompt_in_one_step(tried: Tried) -> None:
    tried.step(*LENGTHS)


def test_f03_a_prompt_in_chunks_that_fit_no_block(tried: Tried) -> None:
    for count in (7, 16, 1, 30, 2, 5):
        tried.step(count)


def test_f03_one_token_after_another(tried: Tried) -> None:
    for _ in range(35):
        tried.step(1)


def test_f03_prefill_and_decode_of_several_in_one_step(tried: Tried) -> None:
    for counts in ((20, 5, 0), (1, 11, 40), (1, 1, 0), (38, 0, 0), (1, 0, 0)):
        tried.step(*counts)


def test_f03_a_prefix_whose_blocks_another_conversation_has_computed(tried: Tried) -> None:
    tried.step(LENGTHS[0])
    tried.share()
    tried.step(0, 5, 40)
    tried.step(0, 1)


def test_bfloat16_stays_within_its_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = try_out(random_model(FAMILIES["qwen3"]), tmp_path, monkeypatch, dtype="bfloat16")
    for counts in ((30, 17, 20), (1, 0, 20), (30, 0, 0)):
        tried.step(*counts, tolerance=0.1 * float(tried.right[0].std()))


def load(config_folder: Path, tensors: Tensors) -> Transformer:
    model = Transformer(open_checkpoint(config_folder).config, for_device(CPU), dtype=torch.float32, device=CPU)
    model.load(tensors.items())
    return model


TIED = CONFIG | {"tie_word_embeddings": True}


def test_f02_a_a_tied_head_is_the_embedding_in_the_same_memory(tmp_path: Path) -> None:
    tensors = random_tensors(TIED, head=False)
    model = load(write_folder(tmp_path, TIED, tensors), tensors)
    assert model.head.data_ptr() == model.embedding.data_ptr()
    assert torch.equal(model.embedding, tensors["model.embed_tokens.weight"])


def test_f02_b_a_tied_head_beside_the_embedding_counts_for_nothing(tmp_path: Path) -> None:
    tensors = random_tensors(TIED, head=False)
    folder = write_folder(tmp_path, TIED, tensors)
    hidden = torch.randn(3, CONFIG["hidden_size"])
    right = load(folder, tensors).logits(hidden)
    assert torch.equal(load(folder, random_tensors(TIED, head=True) | tensors).logits(hidden), right)


def test_f02_c_an_untied_head_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIG, random_tensors(CONFIG))
    with pytest.raises(ModelError, match=r"missing: lm_head\.weight$"):
        load(folder, random_tensors(CONFIG, head=False))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_f02_e_a_gguf_without_a_head_answers_as_the_tied_folder(tmp_path: Path, kind: str) -> None:
    config = TIED | {"model_type": kind}
    tensors = random_tensors(config, head=False)
    assert answers(write_gguf(tmp_path / "m.gguf", config, tensors)) == answers(write_folder(tmp_path, config, tensors))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_f04_a_gguf_answers_as_the_folder_it_was_made_of(tmp_path: Path, kind: str) -> None:
    config = CONFIG | {"model_type": kind}
    tensors = random_tensors(config)
    assert answers(write_gguf(tmp_path / "m.gguf", config, tensors)) == answers(write_folder(tmp_path, config, tensors))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("numbers", [gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0], ids=str)
def test_f04_a_gguf_of_fewer_bits_has_nearly_the_folders_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, numbers: gguf.GGMLQuantizationType
) -> None:
    config = CONFIG | {"model_type": kind}
    tensors = {name: values if "norm" in name else values * 0.1 for name, values in random_tensors(config).items()}
    stored = dict.fromkeys(("_proj.weight", "embed_tokens.weight", "lm_head.weight"), numbers)
    found = []
    for path in (
        write_folder(tmp_path / "m", config, tensors),
        write_gguf(tmp_path / "m.gguf", config, tensors, kinds=stored),
    ):
        ops = Recording()
        monkeypatch.setattr(model_runner, "for_device", lambda device, ops=ops, **_: ops)
        runner = load_runner(open_checkpoint(path), EngineConfig(model=path, dtype="float32", kv_memory=1 << 20))
        prompt = sequence(0, range(5, 55))
        prompt.block_table = [0, 1, 2, 3]
        runner.run(Batch([Row(prompt, 0, 50, sample=True)]))
        found.append(ops.logits[0])
    assert torch.cosine_similarity(*found, dim=0) > 0.999


def answers(path: Path) -> list[list[int]]:
    """32 greedy ids after each of four random prompts."""
    config = EngineConfig(model=path, device="cpu", dtype="float32", kv_memory=1 << 20)
    runner = load_runner(open_checkpoint(path), config)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 260, (length,), generator=generator).tolist() for length in (1, 16, 33, 50)]
    sequences = [sequence(id, prompt, max_tokens=32) for id, prompt in enumerate(prompts)]
    found = [answer.ids for answer in run(scheduler_for(runner), runner, *sequences)]
    assert all(len(ids) == 32 for ids in found)
    return found
