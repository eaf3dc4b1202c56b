"""Calls of tools in a stream, in every format: the same whatever the pieces, and nothing of a text lost."""
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamdam.engine.text.call_format import FORMATS, HERMES, LLAMA, MISTRAL, Call, CallFormat
from hamdam.engine.text.json_scanner import JsonScanner, Verdict
from hamdam.engine.text.tool_calls import CallParser

NAMES = frozenset({"get", "put"})


def parsed(pieces: list[str], form: CallFormat = HERMES, **options: bool) -> list[str | Call]:
    """Texts and calls, texts that follow each other as one."""
    parser = CallParser(form, NAMES, **options)
    found: list[str | Call] = []
    for part in [*(part for piece in pieces for part in parser.push(piece)), *parser.finish()]:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


def parsed_so_far(pieces: list[str], form: CallFormat) -> list[str | Call]:
    """The same where the answer was cut."""
    parser = CallParser(form, NAMES)
    found = [part for piece in pieces for part in parser.push(piece)]
    return found + parser.finish(cut=True)


def cuts(text: str) -> list[list[str]]:
    """Every cut in two, and some in many."""
    dice = random.Random(7)
    many = [sorted(dice.choices(range(len(text) + 1), k=dice.randint(2, 12))) for _ in range(200)]
    places = [[place] for place in range(len(text) + 1)] + many + [list(range(len(text)))]
    return [[text[a:b] for a, b in zip([0, *cut], [*cut, len(text)], strict=True)] for cut in places]


def tagged(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


A11 = [
    (tagged('{"name":"get","arguments":{"id":42}}'), [Call("get", '{"id":42}')]),
    (
        tagged('{"name":"get","arguments":{"text":"write </tool_call> here"}}'),
        [Call("get", '{"text":"write </tool_call> here"}')],
    ),
    (tagged('{"name": "get", "arguments": {}}'), [Call("get", "{}")]),
    (
        tagged('{"name": "get", "arguments": {"a": [1, {"b": "}"}]}}', '{"arguments": {"x": "سلام"}, "name": "put"}'),
        [Call("get", '{"a": [1, {"b": "}"}]}'), Call("put", '{"x": "سلام"}')],
    ),
    (tagged('{"name": "get"}'), [Call("get", "{}")]),
]


@pytest.mark.parametrize(("text", "calls"), A11)
def test_a11_calls_are_whole_and_leave_no_text_behind_however_the_stream_is_cut(text: str, calls: list[Call]) -> None:
    for pieces in cuts(text):
        assert parsed(pieces) == calls, pieces
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)


GET, PUT = Call("get", '{"id": 1}'), Call("put", "{}")
ONE, TWO = '{"name": "get", "arguments": {"id": 1}}', '{"name": "put", "parameters": {}}'


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, f"Let me see.\n\n{tagged(ONE)}", ["Let me see.", GET]),
        (HERMES, f"One.\n{tagged(ONE)}\nThen:\n{tagged(TWO)}\nDone. ", ["One.", GET, "\n\nThen:", PUT, "\n\nDone. "]),
        (HERMES, f"\n{tagged(ONE)}\nDone.", [GET, "Done."]),
        (HERMES, f"<tool_call>{ONE}", [GET]),
        (HERMES, f"<tool_call>[{ONE}, {TWO}]</tool_call>", [GET, PUT]),
        (HERMES, f"<tool_call>{ONE}</tool_", [GET]),
        (HERMES, '<tool_call>{"name": "get", "arguments": "{\\"id\\": 1}"}</tool_call>', [GET]),
        (HERMES, '<tool_call>{"name": "put", "arguments": null}</tool_call>', [PUT]),
        (HERMES, '<tool_call>{"name": "put", "arguments": ""}</tool_call>', [PUT]),
        (MISTRAL, f"[TOOL_CALLS] [{ONE}, {TWO}]", [GET, PUT]),
        (MISTRAL, f"Text[TOOL_CALLS]{ONE}", ["Text", GET]),
        (MISTRAL, '[TOOL_CALLS]get[ARGS]{"id": 1}[TOOL_CALLS]put[CALL_ID]abc[ARGS]{}', [GET, PUT]),
        (MISTRAL, '[TOOL_CALLS]get{"id": 1}', [GET]),
        (LLAMA, ONE, [GET]),
        (LLAMA, f"\n<|python_tag|>{ONE}", [GET]),
        (LLAMA, f"{ONE}; {TWO}", [GET, PUT]),
        (LLAMA, f"{ONE}, {TWO}\n", [GET, PUT]),
    ],
)
def test_every_format_gives_its_calls_and_the_text_around_them(form, text: str, expected: list[str | Call]) -> None:
    for pieces in cuts(text):
        assert parsed(pieces, form) == expected, pieces


BEGUN = Call("get", '{"id": 1', whole=False)


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, f"Let me see.\n<tool_call>\n{ONE[:-2]}", ["Let me see.", BEGUN]),
        (HERMES, f"{tagged(ONE)}\n<tool_call>{ONE[:-2]}", [GET, BEGUN]),
        (HERMES, f"<tool_call>{ONE[:-1]}", [Call("get", '{"id": 1}', whole=False)]),
        (HERMES, '<tool_call>{"name": "get"', [Call("get", "", whole=False)]),
        (HERMES, '<tool_call>{"name": "get", "arguments"', [Call("get", "", whole=False)]),
        (HERMES, '<tool_call>{"name": "get", "arguments": "{', [Call("get", "", whole=False)]),
        (HERMES, '<tool_call>{"arguments": {"id": 1}, "name": "ge', []),
        (HERMES, "<tool_call>\n", []),
        (HERMES, f"<tool_call>[{ONE}, {TWO[:8]}", [GET]),
        (MISTRAL, f"[TOOL_CALLS] [{TWO}, {ONE[:-2]}", [PUT, BEGUN]),
        (MISTRAL, "[TOOL_CALLS] [", []),
        (MISTRAL, '[TOOL_CALLS]get[ARGS]{"id": 1', [BEGUN]),
        (MISTRAL, "[TOOL_CALLS]ge", []),
        (LLAMA, f"{TWO}; {ONE[:-2]}", [PUT, BEGUN]),
        (LLAMA, f"<|python_tag|>{ONE[:-2]}", [BEGUN]),
        (LLAMA, '{"name": "ge', ['{"name": "ge']),
        (LLAMA, '{"answer": "get', ['{"answer": "get']),
        (HERMES, '<tool_call>{"name": "rm", "arguments": {', ['<tool_call>{"name": "rm", "arguments": {']),
        (MISTRAL, "[TOOL_CALLS]rm[ARGS]{", ["[TOOL_CALLS]rm[ARGS]{"]),
        (MISTRAL, "[TOOL_CALLS][5, ", ["[TOOL_CALLS][5, "]),
        (HERMES, "and <tool_", ["and", " <tool_"]),
    ],
)
def test_a_call_that_was_cut_is_no_text_and_as_much_of_a_call_as_is_there(form, text, expected) -> None:
    for pieces in cuts(text):
        found = parsed_so_far(pieces, form)
        assert [part for part in found if isinstance(part, Call)] == [one for one in expected if isinstance(one, Call)]
        told = "".join(part for part in found if isinstance(part, str))
        assert told == "".join(one for one in expected if isinstance(one, str)), pieces


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, '<tool_call>{"name": "get", "arguments": {"id": 4'),
        (HERMES, '<tool_call>\n{"name": "get", "arguments": {"id": 4}\n</tool_call>\n'),
        (HERMES, "<tool_call>get(4)</tool_call> and <tool_ and <tool_call>"),
        (HERMES, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get", "arguments": "x"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get", "arguments": "{\\"id\\": NaN}"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get", "arguments": "' + '{\\"a\\":' * 70 + "1" + "}" * 70 + '"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get", "arguments": {"a": "\\ud83d"}}</tool_call>'),
        (HERMES, f"{ONE}\n"),
        (HERMES, "  plain  text  \n"),
        (HERMES, "<tool_call>[]</tool_call>"),
        (HERMES, '<tool_call>get[ARGS]{"id": 1}'),
        (MISTRAL, '[TOOL_CALLS] rm[ARGS]{"id": 1}'),
        (MISTRAL, "[TOOL_CALLS] to everybody, [TOOL"),
        (MISTRAL, f"[TOOL_CALLS] [{ONE}, 5]"),
        (LLAMA, '{"answer": 42} is JSON, too'),
        (LLAMA, f"As JSON: {ONE}"),
        (LLAMA, "<|python_tag|>print(4)"),
        (LLAMA, '{"name": "get"'),
    ],
)
def test_what_only_looks_like_a_call_is_text_to_the_last_character(form: CallFormat, text: str) -> None:
    for pieces in cuts(text):
        assert parsed(pieces, form) == [text], pieces


def test_a_broken_call_does_not_take_the_next_one_with_it() -> None:
    broken = '<tool_call>\n{"name": "get", "arguments": {"id": 1}\n</tool_call>'
    for pieces in cuts(f"{broken}\n{tagged(TWO)}"):
        assert parsed(pieces) == [broken, PUT]


def test_text_that_cannot_become_a_call_is_told_at_once() -> None:
    parser = CallParser(HERMES, NAMES)
    told = [parser.push(piece) for piece in ("Let", " me", " <", "b> ", "see")]
    assert told == [["Let"], [" me"], [], [" <b>"], [" see"]]
    assert parser.push("<tool_call>x") == ["<tool_call>", "x"], "as soon as it is none"


def test_an_answer_that_goes_on_does_not_begin_with_a_bare_call() -> None:
    assert parsed([ONE], LLAMA, going_on=True) == [ONE]


PIECES = [
    "<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", ONE, TWO, "get", '{"id": 1}',
    "{", "}", "[", "]", '"', "\\", ",", ";", ":", " ", "\n", "5", "null", "سلام", '"name": "get"',
]  # fmt: skip


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), form=st.sampled_from(FORMATS), data=st.data())
def test_a11_the_same_comes_out_for_every_split_of_the_stream(pieces: list[str], form, data: st.DataObject) -> None:
    text = "".join(pieces)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    whole = parsed([text], form)
    assert parsed(pieces, form) == parsed(cut, form) == parsed(list(text), form) == whole
    if all(isinstance(part, str) for part in whole):
        assert "".join(whole) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def scanned(text: str) -> tuple[Verdict, int]:
    scanner, verdict = JsonScanner(), Verdict.MORE
    for count, char in enumerate(text, 1):
        verdict = scanner.push(char)
        if verdict is not Verdict.MORE:
            return verdict, count
    return verdict, len(text)


@given(value=st.lists(JSON) | st.dictionaries(st.text(), JSON), indent=st.sampled_from([None, 2]), ascii=st.booleans())
def test_json_ends_with_its_last_character(value: object, indent: int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert scanned(text + "}") == (Verdict.WHOLE, len(text))


@given(begin=st.sampled_from(["[", '{"']), rest=st.text(st.sampled_from('{}[]",:\\u0a1e-.tru nl\n'), max_size=24))
def test_whole_is_what_pythons_own_reader_takes(begin: str, rest: str) -> None:
    text = begin + rest
    verdict, count = scanned(text)
    if verdict is Verdict.WHOLE:
        assert isinstance(json.loads(text[:count]), dict | list)
    elif verdict is Verdict.BROKEN:
        for rest in ("", '"}', "}", "]", '"]', "1}", '":1}'):
            with pytest.raises(json.JSONDecodeError):
                json.loads(text[:count] + rest)


@pytest.mark.parametrize(
    "text", ["[" * 65, '{"a": ' + "1" * 500, '{"a": 01}', '{"a" 1}', '{"a": "\t"}', "[,]", '{"a": nul}']
)
def test_what_is_no_json_or_too_deep_or_too_long_is_broken(text: str) -> None:
    assert scanned(text)[0] is Verdict.BROKEN
