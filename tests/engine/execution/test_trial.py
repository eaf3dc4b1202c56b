"""Trial: operations that do not work on a device are found out, whatever they do instead; the server starts without."""
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CONFIG, write_folder
from torch import Tensor

from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution.model_runner import load_runner
from hamdam.engine.execution.trial import fault_of, working
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.folder_config import model_config
from hamdam.engine.loading.json_object import JsonObject
from hamdam.engine.models.config import ModelConfig
from hamdam.kernels.ops import Ops
from hamdam.kernels.reference import Reference

CPU = torch.device("cpu")
REFERENCE = Reference()


class WillNotCompile(Reference):
    def rms_norm(self, *given: Any, **named: Any) -> Tensor:
        raise NotImplementedError("no such instruction\non sm_42")


class IsWrong(Reference):
    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        return super().silu_and_mul(gate_up) * 1.5


class IsWrongInDecode(Reference):
    def paged_attention(self, *given: Any, **named: Any) -> Callable[[int, Tensor], Tensor]:
        attention = super().paged_attention(*given, **named)
        return lambda layer, query: attention(layer, query) * (torch.nan if len(query) == 3 else 1)


class IsWrongWithoutAWindow(Reference):
    def paged_attention(self, *given: Any, **named: Any) -> Callable[[int, Tensor], Tensor]:
        attention = super().paged_attention(*given, **named)
        return attention if named["window"] is not None else lambda layer, query: attention(layer, query).flip(-1)


class Rounding(Reference):
    """Right, and another last bit: it adds in another order."""

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
        return super().linear(x.flip(-1), weight.flip(-1), bias)


class DrawsAnother(Reference):
    def sample(self, logits: Tensor, *settings: Tensor) -> Tensor:
        return super().sample(logits, *settings) - 1


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return open_checkpoint(write_folder(tmp_path_factory.mktemp("model"))).config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operations_that_agree_with_the_reference_have_no_fault(shape: ModelConfig, dtype: torch.dtype) -> None:
    assert fault_of(Reference(), shape, dtype=dtype, device=CPU, most=40) is None


GEMMA = {"model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 8, "head_dim": 16}
MIXTURE = {"model_type": "mixtral", "num_local_experts": 9, "num_experts_per_tok": 2}


@pytest.mark.parametrize("changes", [GEMMA, MIXTURE], ids=["gemma2", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_of_each_kind_is_tried(changes: dict[str, Any], dtype: torch.dtype) -> None:
    shape = model_config(JsonObject("config.json", CONFIG | changes))
    wrong = "what they compute is not what the reference computes"
    assert fault_of(Rounding(), shape, dtype=dtype, device=CPU, most=40) is None
    assert fault_of(IsWrongWithoutAWindow(), shape, dtype=dtype, device=CPU, most=40) == wrong


@pytest.mark.parametrize(
    ("ops", "fault"),
    [
        (WillNotCompile, "NotImplementedError: no such instruction on sm_42"),
        (IsWrong, "what they compute is not what the reference computes"),
        (IsWrongInDecode, "what they compute is not what the reference computes"),
        (DrawsAnother, "what they draw is not what the reference draws"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_fault_is_one_line(shape: ModelConfig, ops: type[Ops], fault: str, dtype: torch.dtype) -> None:
    assert fault_of(ops(), shape, dtype=dtype, device=CPU, most=20) == fault


class Agrees:
    """The reference, by another name."""

    def __getattr__(self, name: str) -> Any:
        return getattr(REFERENCE, name)


def test_what_works_is_kept(shape: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    ops = Agrees()
    assert working(ops, shape, dtype=torch.float32, device=CPU, most=20) is ops
    assert not caplog.records


def test_what_does_not_is_replaced_and_said_in_one_line(shape: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    assert type(working(WillNotCompile(), shape, dtype=torch.float32, device=CPU, most=20)) is Reference
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.message.endswith("NotImplementedError: no such instruction on sm_42")
    assert "\n" not in warning.message


def test_a_gpu_without_triton_is_told_of(shape: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    working(Reference(), shape, dtype=torch.float32, device=CPU, most=20)
    [warning] = caplog.records
    assert warning.message.endswith("Triton is not installed")


def test_steps_that_do_not_depend_on_company_are_refused_where_they_cannot_be_had(tmp_path: Path) -> None:
    path = write_folder(tmp_path)
    config = EngineConfig(model=path, device="cpu", kv_memory=1 << 18, invariant=True)
    with pytest.raises(ModelError, match=r"^invariant cannot be had: sums of PyTorch on cpu depend on what else"):
        load_runner(open_checkpoint(path), config)
