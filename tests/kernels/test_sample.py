"""Ops.sample by its definition: what may be taken, how often, and that neither ties nor tiny numbers upset it."""
import math
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from hamdam.kernels.device import for_device
from hamdam.kernels.ops import Ops

VOCABULARY = 151_936  # Qwen's; the widest in use
EVENLY = [(i + 0.5) / 1000 for i in range(1000)]


@pytest.fixture(params=["torch", *(["native"] if find_spec("numba") else [])])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "torch":
        return for_device(torch.device("cpu"))
    from native_sampling import NativeSampling

    return NativeSampling()  # type: ignore[return-value]  # of Ops it is the sampling


def draw(
    ops: Ops, logits: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
    uniform: float | list[float] = 0.5,
) -> list[int]:
    """The same row and settings once for each `uniform`."""
    uniforms = uniform if isinstance(uniform, list) else [uniform]

    def repeated(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.full((len(uniforms),), value, dtype=dtype)

    ids = ops.sample(
        logits.expand(len(uniforms), -1), repeated(temperature), repeated(top_k, torch.int64), repeated(top_p),
        repeated(min_p), torch.tensor(uniforms, dtype=torch.float64),
    )
    assert ids.dtype == torch.int64
    return ids.tolist()


def support(ops: Ops, logits: Tensor, **settings: float) -> set[int]:
    """Every id that some draw takes."""
    return set(draw(ops, logits, uniform=[i / 1000 for i in range(1000)] + [1 - 2**-53], **settings))


def test_uniform_draws_follow_the_probabilities(ops: Ops) -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    counts = torch.tensor(draw(ops, logits, uniform=EVENLY)).bincount(minlength=4)
    assert counts.tolist() == pytest.approx([100, 200, 300, 400], abs=1)


def test_temperature_sharpens_and_flattens(ops: Ops) -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    for temperature in (0.5, 2.0):
        wanted = (logits / temperature).softmax(0) * 1000
        found = torch.tensor(draw(ops, logits, temperature=temperature, uniform=EVENLY))
        assert found.bincount(minlength=4).tolist() == pytest.approx(wanted.tolist(), abs=1)


def test_top_k_keeps_the_largest_and_the_lower_id_of_equals(ops: Ops) -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    assert support(ops, logits, top_k=1) == {1}
    assert support(ops, logits, top_k=2) == {1, 2}
    assert support(ops, logits, top_k=3) == {1, 2, 3}
    assert support(ops, logits, top_k=6) == support(ops, logits, top_k=1_000_000) == {0, 1, 2, 3, 4, 5}


def test_top_p_keeps_the_fewest_that_hold_the_mass(ops: Ops) -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    assert support(ops, logits, top_p=0.39) == {3}
    assert support(ops, logits, top_p=0.41) == {2, 3}
    assert support(ops, logits, top_p=0.71) == {1, 2, 3}
    assert support(ops, logits, top_p=0.95) == {0, 1, 2, 3}


def test_top_p_counts_within_what_top_k_left(ops: Ops) -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    assert support(ops, logits, top_k=2, top_p=0.56) == {3}  # 0.4 / 0.7 = 0.571
    assert support(ops, logits, top_k=2, top_p=0.58) == {2, 3}


def test_min_p_measures_by_the_most_probable(ops: Ops) -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    assert support(ops, logits, min_p=0.49) == {1, 2, 3}
    assert support(ops, logits, min_p=0.51) == {2, 3}
    assert support(ops, logits, min_p=1.0) == {3}


def test_the_three_limits_hold_together(ops: Ops) -> None:
    torch.manual_seed(0)
    for _ in range(8):
        logits = torch.randn(40) * 2
        k, p, least = int(torch.randint(1, 41, ())), float(torch.rand(())), float(torch.rand(())) * 0.3
        probable = logits.double().softmax(0).sort(descending=True)
        kept = probable.values[:k] / probable.values[:k].sum()
        count = int((kept.cumsum(0) < p).sum()) + 1
        kept = kept[:count][kept[:count] >= least * kept[0]]
        allowed = probable.indices[: len(kept)].tolist()
        likely = {id for id, share in zip(allowed, kept / kept.sum(), strict=True) if share > 0.002}
        assert likely <= support(ops, logits, top_k=k, top_p=p, min_p=least) <= set(allowed)


def test_minus_infinity_is_never_taken(ops: Ops) -> None:
    logits = torch.tensor([-math.inf, 1.0, -math.inf, 0.0, -math.inf])
    for settings in ({}, {"top_k": 4}, {"top_p": 0.9999}, {"temperature": 2.0}):
        assert support(ops, logits, **settings) == {1, 3}
    assert draw(ops, logits, temperature=0.0) == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_c02_greedy_takes_the_lowest_id_of_the_largest(ops: Ops, dtype: torch.dtype) -> None:
    equal = torch.tensor([10.0, 10.0, -3.0], dtype=dtype)
    assert set(draw(ops, equal, temperature=0.0, uniform=[0.0, 0.5, 0.999] * 400)) == {0}
    near = torch.tensor([9.9999, 10.0, -3.0])
    assert draw(ops, near, temperature=0.0) == [1]
    wide = torch.zeros(VOCABULARY, dtype=dtype)
    wide[[7_001, 90_000, 151_935]] = 1.0
    assert set(draw(ops, wide, temperature=0.0, uniform=[0.5] * 20)) == {7_001}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.001, 0.01, 2.0])
def test_c02_no_temperature_gives_an_id_out_of_range(ops: Ops, dtype: torch.dtype, temperature: float) -> None:
    logits = torch.tensor([60_000.0, -60_000.0, 59_000.0, 0.0], dtype=dtype)
    assert set(draw(ops, logits, temperature=temperature, uniform=[0.0, 0.5, 1 - 2**-53])) == {0}


@pytest.mark.parametrize("top_p", [1e-9, 0.0001, 0.5, 0.99999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_c02_a_nucleus_over_a_wide_flat_vocabulary_is_found(ops: Ops, dtype: torch.dtype, top_p: float) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(VOCABULARY) * 1e-3).to(dtype)
    ids = draw(ops, logits, top_p=top_p, uniform=[0.0, 0.5, 1 - 2**-53])
    assert all(0 <= id < VOCABULARY for id in ids)
    assert ids == draw(ops, logits, top_p=top_p, uniform=[0.0, 0.5, 1 - 2**-53])
    if top_p == 1e-9:
        assert set(ids) == {int(logits.argmax())}
    if top_p >= 0.99999:
        assert ids[0] < 10  # nearly all are kept, so the walk in the order of ids begins at the first ones
        assert ids[2] > VOCABULARY - 10
        assert ids[1] == pytest.approx(VOCABULARY / 2, rel=0.02)


def test_c02_all_equal_logits_keep_as_many_as_the_mass_needs(ops: Ops) -> None:
    logits = torch.zeros(VOCABULARY)
    assert draw(ops, logits, top_p=0.25, uniform=[0.0, 1 - 2**-53]) == [0, VOCABULARY // 4 - 1]
    assert draw(ops, logits, top_k=1000, uniform=[0.0, 1 - 2**-53]) == [0, 999]


def test_c02_greedy_and_sampled_rows_share_a_batch(ops: Ops) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 100)
    settings = [(0.0, 0, 1.0, 0.0, 0.9), (1.0, 0, 1.0, 0.0, 0.9), (0.0, 5, 0.1, 0.5, 0.1), (2.0, 3, 1.0, 0.0, 0.1),
                (0.7, 0, 0.6, 0.0, 0.4), (1.0, 0, 1.0, 0.2, 0.99)]

    def sample(rows: list[int]) -> list[int]:
        temperature, top_k, top_p, min_p, uniform = zip(*(settings[row] for row in rows), strict=True)
        doubles = (torch.tensor(x, dtype=torch.float64) for x in (temperature, top_p, min_p, uniform))
        temperature, top_p, min_p, uniform = doubles
        return ops.sample(logits[rows], temperature, torch.tensor(top_k), top_p, min_p, uniform).tolist()

    together = sample(list(range(6)))
    assert together == [sample([row])[0] for row in range(6)]
    assert together[0] == int(logits[0].argmax())
    assert together[2] == int(logits[2].argmax())
