"""limits: a grammar beside every other parameter, on PyTorch's path and the native one, with one meaning."""
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_path import TINY, exact_tensors, native
from stepping import Answer, run, scheduler_for, sequence
from tiny_models import byte_tokenizer, write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.masks import ALL_BANNED, limits
from hamdam.engine.execution.model_runner import load_runner
from hamdam.engine.execution.sampler import sample
from hamdam.engine.grammar.grammars import Grammars
from hamdam.engine.grammar.matcher import NO_TOKEN, Grammar, Matcher
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.engine.policy.batch import Broken
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.policy.structured_outputs import StructuredOutputs
from hamdam.engine.text.codec import Codec
from hamdam.kernels.device import for_device

TOKENIZER = byte_tokenizer()
VOCABULARY, END = TINY["vocab_size"], 2
CODEC = Codec(TOKENIZER, None, eos_ids=(0, END))
OPS = for_device(torch.device("cpu"))
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(lambda: CODEC.texts(VOCABULARY))
    yield made
    made.close()


def compiled(grammars: Grammars, **kind: Any) -> Grammar:
    return grammars._compile(StructuredOutputs.from_dict(kind))


def asking(grammar: Grammar, id: int = 1, **params: Any) -> Sequence:
    ends = frozenset({0, END})
    return sequence(
        id, [5, 6, 7], params=SamplingParams(**{"temperature": 0} | params), matcher=Matcher([grammar]), stop_ids=ends,
        held_back_ids=ends, max_tokens=params.get("max_tokens", 60),
    )


def draw(own: Sequence, *liked: str | int) -> str | Broken | None:
    """What a model draws that likes these best, the first of them most; None: the end."""
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 260:] = 99  # ids that the tokenizer does not have
    for worth, one in enumerate(reversed(liked), 1):
        logits[0, one if isinstance(one, int) else id_of(one)] = worth
    [id] = sample(OPS, logits, [own])
    assert isinstance(id, int | Broken)
    if isinstance(id, Broken):
        return id
    if id in own.stop_ids:
        return None
    own.ids.append(id)
    return CODEC.decode([id])


def id_of(text: str) -> int:
    [id] = TOKENIZER.encode(text).ids
    return int(id)


def test_only_what_the_grammar_allows_is_drawn_and_padded_ids_never(grammars: Grammars) -> None:
    own = asking(compiled(grammars, choice=["ab", "ac"]))
    assert [draw(own, "x", END, "c") for _ in range(3)] == ["a", "c", None]


def test_e09_after_ok_both_the_end_and_ay_are_allowed(grammars: Grammars) -> None:
    for liked, right in ((END, ["o", "k", None]), ("a", ["o", "k", "a", "y", None])):
        own = asking(compiled(grammars, choice=["ok", "okay"]))
        assert [draw(own, liked) for _ in right] == right


def test_ignore_eos_goes_on_as_far_as_the_grammar_does_and_then_ends(grammars: Grammars) -> None:
    own = asking(compiled(grammars, choice=["ok", "okay"]), ignore_eos=True)
    assert [draw(own, END) for _ in range(5)] == ["o", "k", "a", "y", None]


def test_min_tokens_holds_the_end_back_only_where_the_grammar_goes_on(grammars: Grammars) -> None:
    own = asking(compiled(grammars, choice=["ok", "okay"]), min_tokens=3)
    assert [draw(own, END) for _ in range(5)] == ["o", "k", "a", "y", None]
    own = asking(compiled(grammars, choice=["ok"]), min_tokens=50)
    assert [draw(own, END) for _ in range(3)] == ["o", "k", None]


def test_bans_end_an_answer_that_may_end_and_fail_one_that_may_not_by_name(grammars: Grammars) -> None:
    banned = ((id_of("a"), -100.0),)
    own = asking(compiled(grammars, choice=["ok", "okay"]), logit_bias=banned)
    assert [draw(own) for _ in range(3)] == ["o", "k", None]
    assert draw(asking(compiled(grammars, choice=["ab"]), logit_bias=banned)) == Broken(ALL_BANNED, refused=True)
    allowed = asking(compiled(grammars, regex="[a-z]{2}"), allowed_token_ids=(id_of("q"),))
    assert [draw(allowed, "a") for _ in range(3)] == ["q", "q", None]
    only_digits = asking(compiled(grammars, regex="[a-z]"), allowed_token_ids=(id_of("7"),))
    assert draw(only_digits) == Broken(ALL_BANNED, refused=True)


def test_bad_words_give_way_where_the_grammar_leaves_nothing_else(grammars: Grammars) -> None:
    own = asking(compiled(grammars, regex="[ab]c"), bad_words=("a", "c"))
    own.bad_ids = ((id_of("a"),), (id_of("c"),))
    assert [draw(own, "a") for _ in range(3)] == ["b", "c", None]


def test_a_penalty_and_a_bias_choose_among_what_is_allowed(grammars: Grammars) -> None:
    own = asking(compiled(grammars, regex="[ab]{3}"), presence_penalty=2, logit_bias=((id_of("b"), 1.5), (9, 99.0)))
    assert [draw(own, "a") for _ in range(3)] == ["b", "a", "b"]


def test_a_matcher_that_is_given_what_its_grammar_lacks_breaks_its_own_sequence_alone(grammars: Grammars) -> None:
    grammar = compiled(grammars, regex="a+")
    good, bad, free = asking(grammar, 1), asking(grammar, 2), sequence(3, [5])
    bad.ids.append(id_of("z"))
    found = sample(OPS, torch.zeros(3, VOCABULARY), [bad, good, free])
    assert isinstance(found[0], Broken) and "grammar" in found[0].why
    assert found[1:] == [id_of("a"), 0]
    assert grammar.worn


def test_a_character_that_no_token_spells_fails_by_name() -> None:
    without_x = Grammars(lambda: [b"" if text == b"x" else text for text in CODEC.texts(VOCABULARY)])
    try:
        own = asking(compiled(without_x, choice=["ax"]))
        assert [draw(own), draw(own)] == ["a", Broken(f"the grammar cannot be followed: {NO_TOKEN}", refused=True)]
    finally:
        without_x.close()


def test_special_and_padded_ids_are_in_no_mask_even_where_a_grammar_takes_any_token(grammars: Grammars) -> None:
    own = asking(compiled(grammars, grammar='start: <[*]> "x"'))
    found = limits([own], VOCABULARY)
    bits = np.unpackbits(found.words.view(np.uint8), bitorder="little")[:VOCABULARY]
    assert bits[:3].tolist() == [0, 0, 0] and not bits[260:].any() and bits[id_of("x")]


# Both paths ----------------------------------------------------------------------------------------------------------


def rows(grammars: Grammars, **params: Any) -> list[Sequence]:
    """Some with a grammar and some without, side by side."""
    person, free = compiled(grammars, json=PERSON), sequence(9, range(40, 70), params=SamplingParams(temperature=0.7))
    found = [asking(person, id, seed=id, **params) for id in range(3)]
    found += [asking(compiled(grammars, regex="[a-f]{5}"), 4, min_tokens=9, **params)]
    found += [asking(compiled(grammars, choice=["yes", "no"]), 5, ignore_eos=True, bad_words=("y",), **params), free]
    for one in found:
        one.seed, one.ids, one.num_prompt = one.id, [*range(one.id, one.id + 20)], 20
    return found


def tiny(folder: Path) -> Checkpoint:
    return open_checkpoint(write_folder(folder, TINY, exact_tensors(TINY)))


def test_the_native_path_and_pytorchs_give_the_same_ids_under_grammars(tmp_path: Path, grammars: Grammars) -> None:
    checkpoint = tiny(tmp_path)
    with native(checkpoint, dtype="int16", threads=2) as runner:
        ours = run(scheduler_for(runner), runner, *rows(grammars))
    config = EngineConfig(model=tmp_path, device="cpu", kv_memory=1 << 20, dtype="float32")
    theirs = run_of(checkpoint, config, rows(grammars))
    constrained = slice(0, 5)
    assert [a.ids for a in ours[constrained]] == [a.ids for a in theirs[constrained]]
    assert {a.reason for a in ours[constrained]} <= {"stop", "length"}
    assert CODEC.decode(ours[4].ids) in ("yes", "no") and ours[4].reason == "stop"


def run_of(checkpoint: Checkpoint, config: EngineConfig, sequences: list[Sequence]) -> list[Answer]:
    runner = load_runner(checkpoint, config)
    try:
        return run(scheduler_for(runner), runner, *sequences)
    finally:
        runner.close()


@pytest.mark.parametrize("budget", [7, 256])
def test_preemption_and_chunks_of_a_prompt_change_no_id_under_a_grammar(
    tmp_path: Path, grammars: Grammars, budget: int
) -> None:
    checkpoint = tiny(tmp_path)
    with native(checkpoint, dtype="int16") as runner:
        roomy = run(scheduler_for(runner), runner, *rows(grammars, temperature=1.0))
        tight = scheduler_for(runner, num_blocks=10, max_batch_tokens=budget)
        cramped = run(tight, runner, *rows(grammars, temperature=1.0))
        assert tight.stats().preemptions
    assert [a.ids for a in cramped] == [a.ids for a in roomy]


def test_nan_logits_of_a_row_under_a_grammar_break_that_row_alone(grammars: Grammars) -> None:
    grammar = compiled(grammars, regex="a+")
    logits = torch.zeros(2, VOCABULARY)
    logits[0, 17] = torch.nan
    broken, good = sample(OPS, logits, [asking(grammar, 1), asking(grammar, 2)])
    assert isinstance(broken, Broken) and good == id_of("a")
