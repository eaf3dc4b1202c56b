"""CompletionsPeer: the engine's workloads on a server that is not ours: what it is asked, and what of it counts."""
import pytest
from fake_peer import FakePeer

from hamdam.engine import BenchError, Workload
from hamdam.server.operations.bench.traffic.completions_peer import SPARE, CompletionsPeer

DECODE = Workload(kind="decode", batch=4, context=32, steps=10)


def peer(door: FakePeer) -> CompletionsPeer:
    return CompletionsPeer(door, vocab_size=100)


def test_prompts_are_sent_once_before_they_count_and_then_all_at_once() -> None:
    door = FakePeer()
    theirs = peer(door)
    counted = theirs.repeat(DECODE)
    first, second = door.asked[:4], door.asked[4:]
    assert [body["max_tokens"] for body in door.asked] == [1] * 4 + [10 + SPARE] * 4
    assert [body["prompt"] for body in first] == [body["prompt"] for body in second]
    assert all(len(body["prompt"]) == 32 and 0 <= min(body["prompt"]) <= max(body["prompt"]) < 100 for body in first)
    assert len({tuple(body["prompt"]) for body in first}) == 4
    assert all(body["ignore_eos"] and body["stream"] and body["model"] == "theirs" for body in door.asked)
    assert 0 < counted.sampled <= 4 * (10 + SPARE - 1)
    assert counted.seconds > 0
    theirs.repeat(DECODE)
    assert len(door.asked) == 12, "the prompts are there already"


def test_alone_all_tokens_after_the_first_count() -> None:
    assert peer(FakePeer()).repeat(Workload(kind="decode", batch=1, context=8, steps=10)).sampled == 10 + SPARE - 1


def test_a_piece_of_several_tokens_counts_as_many() -> None:
    counted = peer(FakePeer(per_piece=2)).repeat(Workload(kind="decode", batch=1, context=8, steps=10))
    assert counted.sampled == 10 + SPARE - 2


def test_prefill_is_a_prompt_of_its_own_each_time_and_one_token() -> None:
    door = FakePeer()
    theirs = peer(door)
    counted = [theirs.repeat(Workload(kind="prefill", prompt=64)) for _ in range(2)]
    assert [(repeat.computed, repeat.sampled) for repeat in counted] == [(64, 1), (64, 1)]
    assert [len(body["prompt"]) for body in door.asked] == [64, 64]
    assert door.asked[0]["prompt"] != door.asked[1]["prompt"]


def test_what_http_cannot_tell_is_not_asked() -> None:
    theirs = peer(FakePeer())
    assert theirs.why_not(Workload(kind="mixed", batch=2, context=8, prompt=8))
    assert theirs.why_not(DECODE) is None


def test_a_peer_that_fails_ends_the_bench_in_one_line() -> None:
    with pytest.raises(BenchError, match="http://peer: status 500"):
        peer(FakePeer(status=500)).repeat(DECODE)


def test_answers_that_never_overlap_are_said_and_not_counted() -> None:
    with pytest.raises(BenchError, match="never answered 4 at once"):
        peer(FakePeer(per_piece=1 << 20)).repeat(DECODE)
