"""A form holds where steps are launched before the ids are known that they begin with: masks are made beside them."""
import json
from pathlib import Path
from typing import Any

from recording import load
from stepping import run, scheduler_for, sequence
from tiny_models import CONFIG

from hamdam.engine.grammar.grammars import Grammars
from hamdam.engine.grammar.matcher import Matcher
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.policy.structured_outputs import StructuredOutputs

END = CONFIG["vocab_size"] - 1
TOKENS = [bytes([id]) if id < 256 else b"" for id in range(CONFIG["vocab_size"])]
SCHEMA = {"enum": [{"a": [1, True]}, "yes", [None, "no"]]}


def sequences(grammars: Grammars) -> list[Sequence]:
    """Some with a form, some without, side by side."""
    form = StructuredOutputs.from_dict({"json": SCHEMA})
    return [
        sequence(
            number, range(90 + number, 110 + number), seed=number, max_tokens=40,
            params=SamplingParams(temperature=1.0), stop_ids=frozenset({END}), held_back_ids=frozenset({END}),
            **({"matcher": Matcher([grammars._compile(form)])} if number % 3 else {}),
        )
        for number in range(6)
    ]


def test_answers_ahead_have_their_form_and_are_those_of_one_step_after_another(tmp_path: Path) -> None:
    grammars = Grammars(lambda: TOKENS)
    found: list[Any] = []
    for ahead in (False, True):
        runner = load(tmp_path, ahead=ahead)
        found.append(run(scheduler_for(runner, max_running=6), runner, *sequences(grammars)))
    grammars.close()
    plain, ahead = ([answer.ids for answer in answers] for answers in found)
    assert ahead == plain
    for number, answer in enumerate(found[1]):
        if number % 3:
            assert answer.reason == "stop"
            assert json.loads(bytes(answer.ids)) in SCHEMA["enum"]
