"""Whole steps by the Triton kernels: prompts, decode that is launched or replayed, and steps that are invariant."""
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from quantised_folders import Made, awq, write_quantised
from stepping import run, scheduler_for, sequence
from tiny_models import CONFIG, write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.decode_graphs import CudaRecorder, Record, Scores
from hamdam.engine.execution.model_runner import ModelRunner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.folder_config import model_config
from hamdam.engine.loading.json_object import JsonObject
from hamdam.engine.loading.weight_names import expected_tensors
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.kernels.ops import Ops
from hamdam.kernels.quantized import W4A16
from hamdam.kernels.reference import Reference
from hamdam.kernels.triton import paged_attention
from hamdam.kernels.triton.ops import TritonOps

SMALL = CONFIG | {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}  # for the interpreter
KINDS = {
    "llama": SMALL,
    "qwen3": SMALL | {"model_type": "qwen3", "head_dim": 16},
    "window": SMALL | {"model_type": "mistral", "sliding_window": 12},
    "partial": SMALL | {"model_type": "phi3", "partial_rotary_factor": 0.5},
    "gemma2": SMALL | {
        "model_type": "gemma2", "num_hidden_layers": 2, "head_dim": 16, "sliding_window": 12,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0,
    },
    "gpt-oss": SMALL | {
        "model_type": "gpt_oss", "num_hidden_layers": 2, "head_dim": 16, "sliding_window": 12, "num_local_experts": 3,
        "num_experts_per_tok": 2, "rope_scaling": None,
    },
}  # fmt: skip
LENGTHS = (31, 15, 1)


def remember(work: Callable[[], Scores]) -> tuple[Callable[[], None], Scores]:
    """Where there are no graphs: a replay does all again, and leaves it where the first time did."""
    left = work()

    def again() -> None:
        left.hidden.copy_(work().hidden)

    return again, left


@pytest.fixture
def record(device: torch.device) -> Record:
    return CudaRecorder() if device.type == "cuda" else remember


@pytest.fixture
def load(tmp_path: Path, device: torch.device) -> Callable[..., ModelRunner]:
    def load(ops: Ops, record: Record | None = None, kind: str = "llama") -> ModelRunner:
        config = KINDS[kind]
        shapes = expected_tensors(model_config(JsonObject("config.json", config)))
        random = torch.Generator().manual_seed(0)
        tensors = {
            name: torch.randn(shape, generator=random) * (1.0 if "norm" in name else 0.3)
            for name, shape in shapes.items()
        }
        path = write_folder(tmp_path / kind, config, tensors)
        knobs = EngineConfig(model=path, kv_memory=1 << 18, max_running=3)
        return ModelRunner(open_checkpoint(path), knobs, ops, device=device, dtype=torch.float32, record=record)

    return load


def some(lengths: Iterable[int] = LENGTHS, *, heat: float = 0.0) -> list[Sequence]:
    return [
        sequence(
            number, range(20 + 9 * number, 20 + 9 * number + length), seed=number, max_tokens=3 + number,
            params=SamplingParams(temperature=heat),
        )
        for number, length in enumerate(lengths)
    ]


def answers(runner: ModelRunner, sequences: list[Sequence]) -> list[list[int]]:
    return [answer.ids for answer in run(scheduler_for(runner, max_running=3), runner, *sequences)]


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_answer_as_the_reference_does(
    load: Callable[..., ModelRunner], record: Record, kind: str
) -> None:
    right = answers(load(Reference(), kind=kind), some())
    assert answers(load(TritonOps(), record, kind), some()) == right


def test_penalties_biases_and_bans_come_before_the_draw_as_with_the_reference(
    load: Callable[..., ModelRunner], record: Record
) -> None:
    asked = (
        SamplingParams(temperature=0.8, top_k=9, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=-0.3),
        SamplingParams(temperature=0, logit_bias=((7, 100.0), (8, -100.0)), min_tokens=2),
        SamplingParams(temperature=1.2, top_p=0.9, allowed_token_ids=(3, 5, 7, 11), presence_penalty=2),
    )

    def rows() -> list[Sequence]:
        return [
            sequence(number, range(20, 26 + number), seed=number, max_tokens=4, params=params)
            for number, params in enumerate(asked)
        ]

    right = answers(load(Reference()), rows())
    assert answers(load(TritonOps(), record), rows()) == right
    generated = [answer[-4:] for answer in right]
    assert generated[1] == [7] * 4
    assert {*generated[2]} <= {3, 5, 7, 11}


def test_quantised_matrices_are_multiplied_as_they_are(tmp_path: Path, device: torch.device) -> None:
    random = np.random.default_rng(0)

    def make(out: int, width: int) -> Made:
        return awq(random, out, width, 32)

    write_quantised(tmp_path, SMALL, {"quant_method": "awq", "bits": 4, "group_size": 32}, make)
    checkpoint = open_checkpoint(tmp_path)
    knobs = EngineConfig(model=tmp_path, dtype="bfloat16", kv_memory=1 << 18, max_running=3)
    ours, right = (
        ModelRunner(checkpoint, knobs, ops, device=device, dtype=torch.bfloat16) for ops in (TritonOps(), Reference())
    )
    assert isinstance(ours._model.layers[0].qkv, W4A16)
    assert isinstance(right._model.layers[0].qkv, torch.Tensor)
    [one], [other] = (answers(runner, some([20])) for runner in (ours, right))
    assert one[0] == other[0]


def test_an_invariant_answer_is_the_same_alone_in_company_in_pieces_and_after_a_preemption(
    load: Callable[..., ModelRunner], record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "CHUNK", 32)
    runner, launched = load(TritonOps(invariant=True), record), load(TritonOps(invariant=True))
    together = answers(runner, some(heat=0.8))
    assert [answers(runner, [one])[0] for one in some(heat=0.8)] == together
    scheduler = scheduler_for(launched, max_running=3, max_batch_tokens=13, num_blocks=4)
    assert [answer.ids for answer in run(scheduler, launched, *some(heat=0.8))] == together
    assert scheduler.stats().preemptions
