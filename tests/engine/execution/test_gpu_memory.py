"""gpu_memory: what is left for KV, by the numbers a driver would give. No GPU is needed to subtract."""
from dataclasses import dataclass

import pytest
import torch

from hamdam.engine.errors import ModelError
from hamdam.engine.execution.gpu_memory import LATER, left_for_kv

GB = 10**9
GPU = torch.device("cuda")


@dataclass
class Memory:
    """Of a GPU of 100 GB: what programs have, what of it is ours, and the most that was ours at a time."""

    others: int = 3 * GB
    ours: int = 16 * GB
    most: int = 90 * GB  # while weights were read
    kept: int = 5 * GB  # by PyTorch for later, of what was ours and is not any more

    def step(self) -> None:
        self.most, self.kept = max(self.most, self.ours + 2 * GB), self.kept + 2 * GB


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()

    def forget_most(device: torch.device) -> None:
        memory.most = memory.ours

    def give_back() -> None:
        memory.kept = 0

    def info(device: torch.device) -> tuple[int, int]:
        return 100 * GB - memory.others - memory.ours - memory.kept, 100 * GB

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget_most)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: memory.ours)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: memory.most)
    monkeypatch.setattr(torch.cuda, "empty_cache", give_back)
    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    return memory


def test_kv_gets_what_weights_others_and_steps_leave_of_the_share(memory: Memory) -> None:
    assert left_for_kv(0.9, GPU, memory.step) == 90 * GB - 3 * GB - 16 * GB - 2 * 2 * GB - LATER


def test_a_model_that_leaves_nothing_is_refused_in_one_line_with_the_numbers(memory: Memory) -> None:
    memory.ours = 88 * GB
    words = r"gpu_memory is 0\.9 of 100\.0 GB, the model and others take 91\.0, and steps need 4\.5$"
    with pytest.raises(ModelError, match=words):
        left_for_kv(0.9, GPU, memory.step)
