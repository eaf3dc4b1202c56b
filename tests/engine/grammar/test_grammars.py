"""Grammars and their matchers: what follows them, what is refused, what compiling costs. Doors have their own tests."""
import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asked import answer, ids_of, structured
from random_runner import random_engine

from hamdam.engine import Chat, ChatMessage, InvalidField
from hamdam.engine.grammar import grammars as module
from hamdam.engine.grammar.grammars import KEPT_FOR_ONE, Grammars
from hamdam.engine.grammar.matcher import Matcher
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.policy.structured_outputs import StructuredOutputs

BYTES = [bytes([byte]) for byte in range(256)] + [b"", b"", b"  ", b"\xff\xff"]
SPACE = 32
AB = {
    "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(lambda: BYTES)
    yield made
    made.close()


def matcher(grammars: Grammars, **kind: Any) -> Matcher:
    return Matcher([grammars._compile(StructuredOutputs.from_dict(kind))])


def refusal(grammars: Grammars, **kind: Any) -> str:
    with pytest.raises(InvalidField) as refused:
        matcher(grammars, **kind)
    assert refused.value.name == f"structured_outputs.{next(iter(kind))}"
    return refused.value.why


def allowed(own: Matcher) -> set[int]:
    words, _ = Matcher.masks([own])
    return {id for id in range(len(BYTES)) if words[0, id >> 5] >> (id & 31) & 1}


def accepts(grammars: Grammars, text: str | bytes, **kind: Any) -> bool:
    """Whether it is all of an answer, byte by byte."""
    own, ids = matcher(grammars, **kind), list(text.encode() if isinstance(text, str) else text)
    for end, id in enumerate(ids):
        if id not in allowed(own):
            return False
        own.follow(ids[: end + 1])
    _, [may_end] = Matcher.masks([own])
    return may_end and own.fault is None


# E02 -----------------------------------------------------------------------------------------------------------------


def test_e02_white_space_between_tokens_is_bounded_across_their_borders(grammars: Grammars) -> None:
    for before in ('{', '{"a"', '{"a":', '{"a":"x"', '{"a":"x",'):
        own, ids = matcher(grammars, json=AB), list(before.encode())
        own.follow(ids)
        for _ in range(4):
            assert SPACE in allowed(own)
            ids.append(SPACE)
            own.follow(ids)
        assert not allowed(own) & {*b" \t\n\r", 258}
        assert allowed(own)


def test_e02_five_ids_of_white_space_may_follow_one_another(grammars: Grammars) -> None:
    assert accepts(grammars, '{\n  "a": "x",\n    "b": 1\n}', json=AB)
    assert not accepts(grammars, '{\n     "a": "x", "b": 1}', json=AB)
    assert not accepts(grammars, '{\n\n"a": "x", "b": 1}', json=AB)
    assert not accepts(grammars, ' {"a": "x", "b": 1}', json=AB)
    assert not accepts(grammars, '{"a": "x", "b": 1} ', json=AB)


def test_e02_json_may_be_indented_by_two_blanks_to_depth_ten() -> None:
    grammars = Grammars(lambda: [*BYTES, b" " * 8])
    for depth, taken in ((10, True), (11, False)):
        deep: Any = 1
        for _ in range(depth):
            deep = [deep]
        own = matcher(grammars, json={"type": "array"})
        ids = grammars._the_lexicon().spell(json.dumps(deep, indent=2))
        for end, id in enumerate(ids):
            words, _ = Matcher.masks([own])
            if not words[0, id >> 5] >> (id & 31) & 1:
                break
            own.follow(ids[: end + 1])
        assert (own.fault is None and Matcher.masks([own])[1] == [True]) is taken
    grammars.close()


def test_white_space_of_a_text_goes_on_where_nothing_else_may_stand(grammars: Grammars) -> None:
    assert accepts(grammars, f'"{" " * 9}x"', json={"const": f"{' ' * 9}x"})
    assert accepts(grammars, f"{' ' * 9}x", regex=" +x")
    assert not accepts(grammars, f'"{" " * 9}x"', json={"type": "string", "pattern": "^ +x$"})
    assert accepts(grammars, f'"{" " * 5}x{" " * 5}x"', json={"type": "string", "pattern": "^( +x)+$"})


@pytest.mark.parametrize("schema", [AB, {"type": "object"}])
@pytest.mark.parametrize("liked", [" \n", "\n "])
def test_e02_a_model_that_always_likes_white_space_still_closes_its_object(schema: dict[str, Any], liked: str) -> None:
    async def scene() -> None:
        def wish(own: Sequence) -> dict[int, float]:
            text = engine.codec.decode(own.ids[own.num_prompt :])
            inside = text.count('"') % 2
            best = ['"'] if inside else [*liked, "}", ","]
            return {id: 1e4 - place for place, id in enumerate(ids_of(engine, best))}

        engine = random_engine(wish)
        engine.start()
        found = await answer(engine, **structured(json=schema), max_tokens=200)
        engine.stop()
        json.loads(found.text)
        assert found.end.reason == "stop" and found.end.usage.output_tokens < 60

    asyncio.run(scene())


# E03 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "2023-12-31"], ["2023-02-29", "1900-02-29", "2024-02-30", "2023-04-31"]),
        ("date-time", ["2024-02-29T23:59:59Z", "2023-01-31t00:00:00.5+01:30"], ["2023-02-29T00:00:00Z"]),
        ("date-time", [], ["2024-01-01T00:00:60Z", "2024-01-01"]),
        ("time", ["12:00:00Z", "23:59:59.123-02:00"], ["12:00:60Z", "24:00:00Z", "12:00:00"]),
        ("ipv4", ["10.0.0.255"], ["10.0.0.256", "10.0.0"]),
        ("ipv6", ["::1", "fe80::1:2"], ["1::2::3", "12345::"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
        ("email", ["a.b@c.de"], ["a@", "@b", "a b@c"]),
        ("hostname", ["a-b.example"], ["-a", "a..b"]),
        ("uri", ["https://example.org/a?b#c", "urn:x:y"], ["//a", "a b:c"]),
        ("duration", ["P1DT2H", "P3W"], ["P", "1D", "PT"]),
    ],
)  # fmt: skip
def test_e03_a_format_is_what_its_standard_says(
    grammars: Grammars, form: str, good: list[str], bad: list[str]
) -> None:
    schema = {"type": "string", "format": form}
    assert {text: accepts(grammars, json.dumps(text), json=schema) for text in good + bad} == {
        text: text in good for text in good + bad
    }


# E06 -----------------------------------------------------------------------------------------------------------------


def test_e06_empty_objects_names_that_are_only_required_and_alternatives_at_the_top(grammars: Grammars) -> None:
    assert accepts(grammars, "{}", json={"type": "object", "properties": {}})
    needed = {"type": "object", "required": ["a"]}
    assert accepts(grammars, '{"a":1}', json=needed) and not accepts(grammars, "{}", json=needed)
    few = {"type": "array", "maxItems": 2}
    assert [accepts(grammars, text, json=few) for text in ("[]", "[1,2]", "[1,2,3]")] == [True, True, False]
    either = {"type": "string", "pattern": "^a|b$"}
    assert [accepts(grammars, text, json=either) for text in ('"ax"', '"xb"', '"xax"')] == [True, True, False]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "integer", "multipleOf": 5, "minimum": 6, "maximum": 9},
        {"type": "array", "prefixItems": [{"enum": ["x"], "type": "integer"}], "minItems": 1},
    ],
)  # fmt: skip
def test_e06_what_nothing_satisfies_is_refused_when_it_is_compiled(grammars: Grammars, schema: dict[str, Any]) -> None:
    assert refusal(grammars, json=schema)


# E08 -----------------------------------------------------------------------------------------------------------------

NEWLINES = "\n" * 65_000
CHAIN: list[tuple[str, Any]] = [(str(number), {"$ref": f"#/$defs/{number + 1}"}) for number in range(1900)]
CHAIN.append(("1900", {"type": "null"}))
MANY = {"type": "object", "properties": {f"p{number}": {"const": "x"} for number in range(1000)}}
HOSTILE: list[tuple[dict[str, Any], bool]] = [  # and whether it is refused
    ({"grammar": 'start: "ab"{1000000000,2000000000}'}, True),
    ({"grammar": 'root ::= "ab"{1000,2000}'}, True),
    ({"grammar": 'start: "a"~1000000000'}, True),
    ({"grammar": 'start: a\na[temperature=0.5]: "x"'}, True),
    ({"grammar": "start: %json {} x"}, True),
    ({"grammar": '%llguidance {"no_forcing": false}\nstart: /a+/'}, True),
    ({"grammar": 'start: %json {"not": {}}'}, True),
    ({"regex": "(?:a{1000}){1001}"}, True),
    ({"regex": "(" * 20 + "a" + ")?" * 20}, False),
    ({"regex": "(a?){500}a{500}"}, False),
    *(({"json": {"type": "string", "maxLength": length}}, False) for length in (1999, 2000, 2001, 2_000_000_000)),
    ({"json": {"anyOf": [{"required": [f"k{number}"]} for number in range(5000)]}}, True),
    ({"json": {"enum": [f"value number {number}" for number in range(100_000)]}}, True),
    ({"json": {"type": "array", "maxItems": 2_000_000_000}}, True),
    ({"json": {"allOf": [{"anyOf": [{"required": [f"{a}{b}"]} for b in range(9)]} for a in range(9)]}}, True),
    ({"choice": [f"value number {number}" for number in range(5000)]}, True),
    # From here on: read in Python, with its lock held, so that nobody could do anything for the seconds that it took.
    ({"grammar": f'{NEWLINES}start: "a"'}, False),
    ({"grammar": f"start: \"a\"{{{' ' * 60_000}"}, True),
    ({"grammar": f"start: \"a\"~1{' ' * 60_000}"}, False),
    ({"grammar": f"start: \"a\"{{{'9' * 60_000}}}"}, True),
    ({"grammar": "a" * 65_000}, True),
    ({"regex": "[" * 4000}, True),
    *(({"json": {"$ref": "#/$defs/0", "$defs": dict(given)}}, False) for given in (CHAIN, CHAIN[::-1])),
    ({"json": {"$defs": {"o": MANY}, "anyOf": [{"oneOf": [{"$ref": "#/$defs/o"}] * 250} for _ in range(2)]}}, True),
]


TOWER = "".join(f'a{number}: a{number + 1} a{number + 1} | ""\n' for number in range(60))


@pytest.mark.parametrize(
    "grammar",
    [
        f'start: a0\n{TOWER}a60: "x"', 'start: r~0..9000\nr: "x"? "y"?', 'start: r~0..9000\nr: s~0..9000\ns: "x"?',
        'start: a*\na: b | c | d | e\nb: "x" a? "x"\nc: "x" a "x"\nd: "x"*\ne: a a',
    ],
)  # fmt: skip
def test_e08_a_grammar_that_is_ambiguous_everywhere_fails_before_a_mask_takes_long(
    grammars: Grammars, grammar: str
) -> None:
    own = matcher(grammars, grammar=grammar)
    for length in range(1, 100):
        Matcher.masks([own])
        if own.fault is not None:
            break
        own.follow(b"x" * length)
    assert "items; max is" in str(own.fault)


@pytest.mark.parametrize(("asked", "refused"), HOSTILE)
def test_e08_what_is_hostile_is_refused_by_name_or_costs_its_bound(
    grammars: Grammars, asked: dict[str, Any], refused: bool
) -> None:
    if refused:
        refusal(grammars, **asked)
        return
    own, ids = matcher(grammars, **asked), []
    for _ in range(60):
        if not (left := allowed(own)):
            break
        ids.append(max(left))
        own.follow(ids)
    assert own.fault is None


def test_e08_what_costs_too_much_right_at_its_beginning_is_refused_as_that(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.LIMITS, "step_max_items", 20)
    own = 'start: e\ne: e e | "a" | e "+" e | "(" e ")" | /[a-z]/'
    assert "Too many items (limit 20" in refusal(grammars, grammar=own)


def test_e08_one_owner_keeps_few_grammars_and_nobody_elses_go_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    lark = module.lark
    monkeypatch.setattr(module, "lark", lambda asked: compiled.append(asked.source) or lark(asked))

    async def scene() -> None:
        own = Grammars(lambda: BYTES)
        mine = StructuredOutputs("regex", "mine")
        await own.compiled(mine, "ben")
        for number in range(3 * KEPT_FOR_ONE):
            await own.compiled(StructuredOutputs("regex", f"r{number}"), "ana")
        assert len(own._kept) == KEPT_FOR_ONE + 1
        await own.compiled(mine, "ana")
        await own.compiled(StructuredOutputs("regex", "r0"), "ana")
        own.close()

    asyncio.run(scene())
    assert compiled.count("mine") == 1 and compiled.count("r0") == 2


def test_who_leaves_while_it_is_compiled_spoils_it_for_nobody() -> None:
    async def scene() -> None:
        own, go_on = Grammars(lambda: BYTES), threading.Event()
        compile_one = own._compile
        own._compile = lambda asked: go_on.wait() and compile_one(asked)  # type: ignore[method-assign,return-value]
        asked = StructuredOutputs("regex", "a")
        first, second = (asyncio.ensure_future(own.compiled(asked, owner)) for owner in ("ana", "ben"))
        await asyncio.sleep(0)
        first.cancel()
        go_on.set()
        assert await second is await own.compiled(asked, "ben")
        own.close()

    asyncio.run(scene())


# E09 -----------------------------------------------------------------------------------------------------------------


def test_e09_only_strings_of_rfc_8259_are_written(grammars: Grammars) -> None:
    text = {"type": "string"}
    for good in ('"é🐈"', '"\\n\\t\\"\\\\"', '"/"', '"\\b\\f\\r"'):
        assert accepts(grammars, good, json=text)
        assert json.loads(good) is not None
    for bad in (b"\n", b"\x01", b"\\q", b"\\u12", b"\\ud83d", b"\xf0", b"\xc3(", b"\xed\xa0\xbd", b"\x00", b"\x7f\xff"):
        assert not accepts(grammars, b'"' + bad + b'"', json=text), bad


def test_a_class_that_excludes_quotes_excludes_them_also_where_they_are_escaped(grammars: Grammars) -> None:
    for pattern in ('^[^"]*$', "^[^\\\\]*$", "^[\\x00-!]*$", "^\\p{Cc}*$"):
        schema = {"type": "string", "pattern": pattern}
        taken = {text: accepts(grammars, json.dumps(text), json=schema) for text in '"\\!\n'}
        assert taken == {text: bool(re.search(pattern.replace("\\p{Cc}", "[\0-\x1f]"), text)) for text in taken}
    names = {"type": "object", "patternProperties": {'^[^"]$': True}, "additionalProperties": False}
    assert accepts(grammars, '{"a":1}', json=names) and not accepts(grammars, '{"\\"":1}', json=names)


def test_e09_a_name_cannot_be_spelled_a_second_time_past_its_own_schema(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert accepts(grammars, '{"a":1,"b":"x"}', json=schema)
    assert not accepts(grammars, '{"\\u0061":"x"}', json=schema)


def test_e09_a_cat_is_chosen_and_length_counts_code_points(grammars: Grammars) -> None:
    assert accepts(grammars, "🐈", choice=["🐈"])
    three = {"type": "string", "maxLength": 3}
    assert accepts(grammars, '"🐈🐈🐈"', json=three) and not accepts(grammars, '"🐈🐈🐈🐈"', json=three)
    assert [accepts(grammars, text, json={"enum": ["ok", "okay"]}) for text in ('"ok"', '"okay"', '"oka"')] == [1, 1, 0]


def test_e09_a_model_that_likes_what_strings_may_not_hold_writes_json_all_the_same() -> None:
    async def scene() -> None:
        engine = random_engine(lambda _: dict.fromkeys(liked, 3.0), max_queued=1000)
        texts = engine.codec.texts(engine.runner.vocab_size)
        liked = [texts.index(bytes([byte])) for byte in (10, 1, 0xF0, 0xED, *b'"\\qud8312')]
        engine.start()
        found = await asyncio.gather(*(
            answer(engine, **structured(json={"type": "string", "maxLength": 12}), max_tokens=60, seed=seed)
            for seed in range(100)
        ))
        engine.stop()
        assert {one.end.reason for one in found} == {"stop"}
        assert all(len(json.loads(one.text)) <= 12 for one in found)
        assert any("\\n" in one.text for one in found)

    asyncio.run(scene())


# And the rest --------------------------------------------------------------------------------------------------------


def test_choices_are_texts_to_the_letter(grammars: Grammars) -> None:
    choices = ['a"b', "\\n", "x\ny", "%json", "/a/", "\x01", "\u2028"]
    for choice in choices:
        assert accepts(grammars, choice, choice=choices)
    assert not accepts(grammars, "\n", choice=choices)


def test_a_regular_expression_is_matched_by_all_of_the_answer(grammars: Grammars) -> None:
    for regex in ("a/b{2}", "^a/b{2}$", "(?:a/)bb"):
        assert [accepts(grammars, text, regex=regex) for text in ("a/bb", "xa/bb", "a/bbb")] == [True, False, False]
    assert accepts(grammars, "a\n\\/", regex="a\n\\\\\\/")
    assert "look-around" in refusal(grammars, regex="a(?=b)")


def test_digits_of_a_pattern_are_ascii_and_of_a_regular_expression_of_any_script(grammars: Grammars) -> None:
    for digit, of_pattern in (("5", True), ("٥", False)):
        assert accepts(grammars, digit, regex=r"\d") and accepts(grammars, digit, grammar=r"start: /\d/")
        assert accepts(grammars, f'"{digit}"', json={"type": "string", "pattern": r"^\d$"}) is of_pattern


def test_a_json_schema_inside_of_a_grammar_is_held_to_like_any_other(grammars: Grammars) -> None:
    lark = 'start: "<" value ">"\nvalue: %json {"enum": ["a", 1]}'
    assert [accepts(grammars, text, grammar=lark) for text in ("<1>", '<"a">', "<2>")] == [True, True, False]
    assert "/made-up" in refusal(grammars, grammar='start: %json {"made-up": 1}')
    assert "line 2" in refusal(grammars, grammar='start: "a" b\nb: c')


def test_an_answer_that_goes_on_is_followed_from_its_beginning() -> None:
    async def scene() -> None:
        engine = random_engine()
        engine.start()
        begun = Chat((ChatMessage("user", "x"), ChatMessage("assistant", '{"a"')), continue_last=True)
        found = await answer(engine, begun, **structured(json={"const": {"a": 1}}), max_tokens=60, seed=2)
        assert json.loads('{"a"' + found.text) == {"a": 1}
        with pytest.raises(InvalidField, match="structured_outputs"):
            await answer(engine, begun, **structured(regex="[0-9]+"))
        assert not engine._in_flight
        engine.stop()

    asyncio.run(scene())
