"""The sampler against the reference and by its definition: limits, ties, tiles that one row does not fit in."""
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hamdam.kernels.reference import Reference
from hamdam.kernels.triton import sample as sampling
from hamdam.kernels.triton.product import INTERPRETED

Settings = tuple[float, int, float, float, float]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New memory holds no zeros. And the interpreter makes its language anew whenever a kernel calls a function, which
    is most of what a test would take: once a module is enough."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    if INTERPRETED:
        from triton.runtime import interpreter

        made: set[str] = set()

        def call(self: object, *args: object, **options: object) -> object:
            if self.fn.__module__ not in made:
                made.add(self.fn.__module__)
                interpreter._patch_lang(self.fn)
            return self.rewrite()(*args, **options)

        monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
    yield
    torch.use_deterministic_algorithms(False)


def draw(logits: Tensor, settings: list[Settings]) -> list[int]:
    """A row of `logits` for each of the settings: temperature, top_k, top_p, min_p, uniform."""
    temperature, top_k, top_p, min_p, uniform = (torch.tensor(x) for x in zip(*settings, strict=True))
    doubles = (x.double() for x in (top_p, min_p, uniform))
    ids = sampling.sample(logits, temperature.double(), top_k.long(), *doubles)
    assert ids.dtype == torch.int64 and ids.device == logits.device
    return ids.tolist()


def referred(logits: Tensor, settings: list[Settings]) -> list[int]:
    temperature, top_k, top_p, min_p, uniform = (torch.tensor(x) for x in zip(*settings, strict=True))
    doubles = (x.double() for x in (top_p, min_p, uniform))
    return Reference().sample(logits.cpu(), temperature.double(), top_k.long(), *doubles).tolist()


def support(logits: Tensor, **chosen: float) -> set[int]:
    """Every id that some draw takes."""
    own = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | chosen
    settings = [(*own.values(), i / 11) for i in range(11)] + [(*own.values(), 1 - 2**-53)]
    return set(draw(logits.expand(len(settings), -1), settings))


def random_settings(vocabulary: int) -> Settings:
    def one_of(*options: float) -> float:
        return options[int(torch.randint(len(options), ()))]

    return (
        one_of(0.0, 0.001, 0.7, 1.0, 2.0), int(one_of(0, 1, 2, 40, vocabulary - 1, vocabulary, 1_000_000)),
        one_of(1.0, 1e-9, 0.3, 0.9, 0.999), one_of(0.0, 0.0, 0.05, 0.5, 1.0), float(torch.rand(()).double()),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("vocabulary", "lanes"), [(1, 4096), (5, 4), (33, 16), (50, 16), (200, 4096)])
def test_any_row_is_sampled_as_the_reference_does(
    vocabulary: int, lanes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(sampling, "LANES", lanes)
    settings = [random_settings(vocabulary) for _ in range(8)]
    logits = torch.randn(8, vocabulary) * torch.tensor([0.01, 1.0, 3.0, 8.0]).repeat(2)[:, None]
    logits[4:] = logits[4:].round()  # ties
    logits = logits.to(dtype).to(device)
    assert draw(logits, settings) == referred(logits, settings)


@pytest.mark.parametrize("lanes", [4, 4096])
def test_limits_keep_what_they_say(lanes: int, monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(sampling, "LANES", lanes)
    probable = torch.tensor([0.1, 0.2, 0.3, 0.4], device=device).log()
    assert support(probable, top_p=0.39) == {3}
    assert support(probable, top_p=0.71) == {1, 2, 3}
    assert support(probable, top_k=2, top_p=0.58) == {2, 3}
    assert support(probable, min_p=0.51) == {2, 3}
    assert support(probable, min_p=1.0) == {3}
    tied = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0], device=device)
    assert support(tied, top_k=2) == {1, 2}
    assert support(tied, top_k=3) == {1, 2, 3}
    infinite = torch.tensor([-math.inf, 1.0, -math.inf, 0.0, -math.inf], device=device)
    assert support(infinite) == support(infinite, top_k=4) == support(infinite, top_p=0.9999) == {1, 3}


def test_both_zeros_are_one_logit(device: torch.device) -> None:
    logits = torch.tensor([-0.0, 0.0, -0.0, 0.0, -1.0], device=device)
    assert support(logits, top_k=2) == {0, 1}
    assert support(logits, top_k=3) == {0, 1, 2}
    assert draw(logits[None], [(0.0, 0, 1.0, 0.0, 0.9)]) == [0]


def test_draws_follow_the_probabilities(device: torch.device) -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4], device=device).log()
    settings = [(1.0, 0, 1.0, 0.0, (i + 0.5) / 40) for i in range(40)]
    counts = torch.tensor(draw(logits.expand(40, -1), settings)).bincount(minlength=4)
    assert counts.tolist() == pytest.approx([4, 8, 12, 16], abs=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_c02_extreme_logits_and_temperatures_give_an_id_of_the_row(dtype: torch.dtype, device: torch.device) -> None:
    logits = torch.tensor([60_000.0, -60_000.0, 59_000.0, 0.0], dtype=dtype, device=device)
    settings = [(heat, 0, p, 0.0, u) for heat in (0.001, 2.0) for p in (1.0, 0.9) for u in (0.0, 1 - 2**-53)]
    assert set(draw(logits.expand(len(settings), -1), settings)) == {0}


@pytest.mark.parametrize("top_p", [1e-9, 0.5, 1.0])
def test_c02_a_nucleus_over_a_wide_flat_vocabulary_is_found(top_p: float, device: torch.device) -> None:
    vocabulary = 60_000  # of which no tile of candidates holds the half
    logits = torch.zeros(2, vocabulary, device=device)
    found = draw(logits, [(1.0, 0, top_p, 0.0, 0.0), (1.0, 0, top_p, 0.0, 1 - 2**-53)])
    assert found == [0, max(math.ceil(vocabulary * top_p) - 1, 0)]


def test_a_row_of_a_real_width_is_sampled_as_the_reference_does(device: torch.device) -> None:
    logits = (torch.randn(3, 151_936) * 2.5).bfloat16().to(device)
    settings = [(0.7, 20, 0.8, 0.0, 0.77), (1.0, 0, 0.95, 0.05, 0.31), (1.0, 0, 1.0, 0.0, 0.5)]
    assert draw(logits, settings) == referred(logits, settings)


def test_rows_do_not_notice_each_other_nor_where_they_lie(device: torch.device) -> None:
    wider = torch.randn(6, 100, device=device)
    logits = wider[:, 10:80]
    settings = [random_settings(70) for _ in range(6)]
    together = draw(logits, settings)
    assert together == [draw(logits[row : row + 1].clone(), settings[row : row + 1])[0] for row in range(6)]


def test_no_rows_are_no_ids(device: torch.device) -> None:
    none = torch.empty(0, dtype=torch.float64)
    assert sampling.sample(torch.empty(0, 9, device=device), none, none.long(), none, none, none).tolist() == []
