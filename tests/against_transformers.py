"""Random models through a ModelRunner, step by step, each step's logits beside those of transformers. Not a test."""
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from stepping import sequence
from tiny_models import byte_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution import model_runner
from hamdam.engine.execution.model_runner import ModelRunner, load_runner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.policy.batch import Batch, Row
from hamdam.engine.policy.sequence import Sequence
from hamdam.kernels.device import for_device

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 264, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 256, "initializer_range": 0.3,
}
LENGTHS = (61, 17, 40)


class Recording(type(for_device(CPU))):
    """The operations of the CPU, which keep the logits that are sampled from."""

    logits: Tensor

    def sample(self, logits: Tensor, *settings: Tensor) -> Tensor:
        self.logits = logits.clone()
        return super().sample(logits, *settings)


@dataclass
class Tried:
    """A runner, three sequences of random ids, and the logits that the reference has after each of their tokens."""

    runner: ModelRunner
    ops: Recording
    sequences: list[Sequence]
    right: list[Tensor]
    done: list[int] = field(default_factory=lambda: [0, 0, 0])

    def step(self, *counts: int, tolerance: float = 1e-4) -> None:
        """Computes so many more tokens of each sequence, and compares the logits after the last of them."""
        rows = [Row(s, at, n, sample=True) for s, at, n in zip(self.sequences, self.done, counts, strict=False) if n]
        self.runner.run(Batch(rows))
        self.done = [at + n for at, n in zip(self.done, (*counts, 0, 0), strict=False)]
        right = torch.stack([self.right[row.sequence.id][row.start + row.count - 1] for row in rows])
        torch.testing.assert_close(self.ops.logits, right, rtol=0, atol=tolerance)

    def share(self, blocks: int = 3) -> None:
        """The second sequence becomes the first's, with the blocks that the first has computed of its beginning."""
        first, other = self.sequences[:2]
        other.ids, other.block_table = first.ids, first.block_table[:blocks] + other.block_table[:1]
        self.right[1], self.done[1] = self.right[0], 16 * blocks


def save(model: PreTrainedModel, folder: Path) -> Path:
    with warnings.catch_warnings(action="ignore"):
        model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("norm", "bias", "sinks")):  # as they are made, a mistake would not show
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def try_out(
    model: PreTrainedModel, folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: str = "float32",
    max_context: int | None = None,
) -> Tried:  # fmt: skip
    """folder: a folder to save the model in, or a file that holds it already."""
    ops = Recording()
    monkeypatch.setattr(model_runner, "for_device", lambda device, **_: ops)
    path = save(model, folder) if folder.is_dir() else folder
    config = EngineConfig(model=path, dtype=dtype, device="cpu", kv_memory=1 << 20, max_context=max_context)
    runner = load_runner(open_checkpoint(path), config)
    blocks = iter(torch.randperm(runner.num_blocks).tolist())
    sequences, right = [], []
    for id, length in enumerate(LENGTHS):
        ids = torch.randint(3, 260, (length,))
        sequences.append(sequence(id, ids.tolist()))
        sequences[-1].block_table = [next(blocks) for _ in range(-(-length // 16))]
        with torch.inference_mode():
            right.append(model(ids[None]).logits[0])
    assert right[0].std() > 0.3  # so that the tolerance means something
    return Tried(runner, ops, sequences, right)
