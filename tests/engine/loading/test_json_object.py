"""What a model's JSON may hold: objects and numbers that mean one thing, text that can be written."""
import pytest

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.json_object import parse_object


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"\\uDC00": 1}', "surrogates not allowed"),
        (b'{"a": 1e400}', "1e400 is too large"),
        (b'{"a": -1e999}', "-1e999 is too large"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": Infinity}', "Infinity is no number"),
        (b'{"a": 123456789012345678901}', "a number of 21 digits"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b"[1]", "not a JSON object"),
        (b'{"a": "\xff"}', "not the JSON it should be"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "not the JSON it should be"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(data: bytes, words: str) -> None:
    with pytest.raises(ModelError, match=words) as refusal:
        parse_object("some.json", data)
    assert str(refusal.value).startswith("some.json: ") and "\n" not in str(refusal.value)


def test_both_halves_of_a_pair_are_one_character() -> None:
    said = parse_object("some.json", b'{"a": "\\ud83d\\ude0a", "b": "\\\\ud800", "c": 1e-400}')
    assert said.values == {"a": "\U0001f60a", "b": "\\ud800", "c": 0.0}
