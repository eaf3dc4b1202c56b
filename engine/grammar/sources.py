"""Sources: what a client asked of an answer's form, as one grammar of llguidance. It compiles nothing.

Every grammar is written as Lark, so that one option holds for all: which ids spell a text is left to the model.
"""
import json
import re
from typing import Any

from ..errors import InvalidField
from ..policy.structured_outputs import FIELD, StructuredOutputs
from .json_schema import MAX_OPTIONAL, SchemaError, prepared
from .regex import RegexError, check_regex

HEAD = '%llguidance {"no_forcing": true}\n'
WHITESPACE = r"[ \t]{1,4}|\n[ \t]{0,4}"
"""Between two parts of JSON: at most a line break and four blanks. A model that likes white space could else write
nothing but that until it is cut off."""
INDENTED = r"[ \t]{1,4}|\n[ \t]{0,20}"
"""The same where all of the answer is JSON and the matcher counts ids of white space: lines may be indented by two
blanks to depth ten, as models like it and are better at."""
ESCAPES = 'nrbtf\\"'
"""Of JSON's strings: without \\uXXXX, in which a name could be spelled a second time, and past its own schema."""
MAX_REPETITIONS = 10_000
_BOUND = re.compile(r"\{\s*+(\d++)?\s*+(?:,\s*+(\d++)?\s*+)?\}|~\s*+(\d++)(?:\s*+\.\.\s*+(\d++))?")
_OPTION = re.compile(r"^[ \t]*+[?!]?[\w-]++[ \t]*+\[[^\]\n]*\b(temperature|max_tokens|stop)\b", re.MULTILINE)
"""Neither looks at a character again and again: Python's lock is held meanwhile."""
_DECODER = json.JSONDecoder()


def lark(asked: StructuredOutputs) -> str:
    """Raises InvalidField, by the name of the part of `structured_outputs`."""
    field = f"{FIELD}.{asked.kind}"
    try:
        match asked.kind:
            case "json":
                return f"{HEAD}start: {_json(json.loads(asked.source), INDENTED, MAX_OPTIONAL)}"
            case "choice":
                choices = (json.dumps(text, ensure_ascii=False) for text in json.loads(asked.source))
                return f"{HEAD}start: {' | '.join(choices)}"
            case "regex":
                check_regex(asked.source)
                return f"{HEAD}start: /{quoted(asked.source)}/"
            case _:
                return HEAD + _grammar(asked.source, field)
    except (SchemaError, RegexError) as error:
        raise InvalidField(field, str(error)) from error


def _json(schema: Any, whitespace: str, most_optional: int) -> str:
    options = {"whitespace_pattern": whitespace, "json_allowed_escapes": ESCAPES}
    return f"%json {json.dumps({'x-guidance': options, **prepared(schema, most_optional)}, ensure_ascii=False)}"


def quoted(regex: str) -> str:
    """As it may stand between two slashes."""
    return re.sub(r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), regex, flags=re.DOTALL)


def _grammar(source: str, field: str) -> str:
    """The client's own, with each JSON schema in it checked like any other."""
    first, *others = source.split("%json")
    _check_rules(first, field)
    parts = [first]
    for other in others:
        text = other.lstrip()
        try:
            schema, end = _DECODER.raw_decode(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidField(field, "a JSON schema is needed after %json") from error
        if not isinstance(schema, dict):
            raise InvalidField(field, "a JSON schema is needed after %json, as an object")
        _check_rules(text[end:], field)
        parts.append(_json(schema, WHITESPACE, MAX_OPTIONAL // 2) + text[end:])  # as grammars.py bounds their items
    return "".join(parts)


def _check_rules(source: str, field: str) -> None:
    """Of what stands between schemas."""
    if "%llguidance" in source:
        raise InvalidField(field, "options of `%llguidance` are the server's own")
    if found := _OPTION.search(source):
        raise InvalidField(field, f"the option `{found[1]}` of a rule is not enforced here")
    for bound in _BOUND.finditer(source):
        if any(len(number) > 9 or int(number) > MAX_REPETITIONS for number in bound.groups() if number):
            raise InvalidField(field, f"at most {MAX_REPETITIONS} repetitions are taken")
