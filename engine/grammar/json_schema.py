"""JsonSchema: a schema walked before it is compiled: keywords are enforced, or refused by place. It compiles nothing.

    prepared(schema)    the schema as llguidance is to have it; raises SchemaError

What llguidance enforces only in part is refused here, and so is what it would take no notice of. Words inside `const`,
`enum`, `default` and `examples` are data. JSON Schema 2020-12 is what counts, whatever `$schema` says.
"""
import re
from collections.abc import Callable, Mapping
from typing import Any

from .dialect import pointer_of, told_apart_by, written
from .regex import RegexError, check_regex

ANNOTATIONS = frozenset({
    "$comment", "$schema", "contentEncoding", "contentMediaType", "contentSchema", "default", "deprecated",
    "description", "examples", "readOnly", "title", "writeOnly",
})  # fmt: skip
FORMATS = (
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
)  # fmt: skip
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
MAX_DEPTH = 64
MAX_SCHEMAS = 2000  # schemas in a schema; properties and branches are among them
MAX_BRANCHES = 256  # of one anyOf, oneOf or allOf
MAX_ENUM = 5000  # values of all enums together
MAX_OPTIONAL = 490  # properties of an object that requires none; twice as many follow one that it requires
MAX_COUNT = 1 << 31
MAX_ITEMS = 10_000
MAX_NUMBER = 1 << 53  # up to here whole numbers are exact in floating point
MAX_DIVISOR = 100_000  # of multipleOf, times the power of ten that makes it whole: as many states has its automaton
_UNWRITTEN = re.compile("[\0-\x07\x0b\x0e-\x1f\x7f]")  # characters that have no escape of two letters
_POINTER = re.compile(r"#(?:/(?:[^~/]|~[01])*)*")


class SchemaError(ValueError):
    """What is wrong, and where: `pointer` is a JSON pointer (RFC 6901) into the schema."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"at {_shown(pointer)}: {why}")
        self.pointer = pointer


def _shown(pointer: str) -> str:
    text = pointer or "the root"
    return "".join(char if char.isprintable() else "?" for char in (text if len(text) <= 200 else f"{text[:199]}…"))


def prepared(schema: dict[str, Any], most_optional: int = MAX_OPTIONAL) -> dict[str, Any]:
    """Raises SchemaError."""
    walk = _Walk()
    walk.schema(schema, "", 0)
    walk.check_references()
    _check_optional(walk.schemas, most_optional)
    _check_finite(walk.schemas)
    found: dict[str, Any] = written(schema, walk.schemas, ENFORCED)
    return found


def regexes(schema: dict[str, Any]) -> list[tuple[str, str]]:
    """The pointer and the text of every regular expression of a schema that `prepared` took."""
    found = []
    for at, given in _schemas(schema).items():
        if isinstance(given, dict):
            found += [(f"{at}/pattern", given["pattern"])] if "pattern" in given else []
            found += [(f"{at}/patternProperties/{_token(name)}", name) for name in given.get("patternProperties", {})]
    return found


def pointers_to(schema: dict[str, Any], keyword: str) -> list[str]:
    return [f"{at}/{keyword}" for at, given in _schemas(schema).items() if isinstance(given, dict) and keyword in given]


def _schemas(schema: dict[str, Any]) -> dict[str, Any]:
    walk = _Walk()
    walk.schema(schema, "", 0)
    return walk.schemas


class _Walk:
    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}  # by pointer
        self._references: list[tuple[str, str]] = []  # pointer of the keyword, and what it names
        self._discriminators: list[tuple[str, str]] = []  # pointer of the keyword, and the property's name
        self._values = 0  # in enums

    def schema(self, given: object, at: str, depth: int) -> None:
        self.schemas[at] = given
        if isinstance(given, bool):
            return
        if not isinstance(given, dict):
            raise SchemaError(at, "a schema is needed: an object, true or false")
        if depth > MAX_DEPTH or len(self.schemas) > MAX_SCHEMAS:
            raise SchemaError(at, f"at most {MAX_DEPTH} schemas in one another and {MAX_SCHEMAS} in all are taken")
        for keyword, value in given.items():
            here = f"{at}/{_token(keyword)}"
            if keyword in ANNOTATIONS or (keyword == "$id" and not at and isinstance(value, str)):
                continue
            rule = RULES.get(keyword)
            if rule is None:
                raise SchemaError(here, f"`{_shown(keyword)}` is not enforced here")
            rule(self, value, here, depth)
        _check_together(given, at)

    def reference(self, value: object, at: str, _depth: int) -> None:
        if not isinstance(value, str) or not _POINTER.fullmatch(value):
            raise SchemaError(at, "only a JSON pointer into this schema, such as #/$defs/name, is followed")
        self._references.append((at, pointer_of(value)))

    def check_references(self) -> None:
        for at, pointer in self._references:
            if pointer not in self.schemas:
                raise SchemaError(at, "there is no such schema in this schema")
        for at, name in self._discriminators:
            given = self.schemas[at.removesuffix("/discriminator")]
            if told_apart_by(given.get("oneOf", given.get("anyOf", ())), self.schemas) != name:
                raise SchemaError(at, "it holds only where each branch requires its own `const` of the property")

    def discriminator(self, value: object, at: str, _depth: int) -> None:
        """OpenAPI's: it says nothing more where every branch itself says what the property is."""
        if not isinstance(value, dict) or not isinstance(name := value.get("propertyName"), str):
            raise SchemaError(at, "an object with `propertyName` is needed")
        self._discriminators.append((at, name))

    def count_values(self, count: int, at: str) -> None:
        self._values += count
        if self._values > MAX_ENUM:
            raise SchemaError(at, f"at most {MAX_ENUM} values are taken")


Rule = Callable[[_Walk, Any, str, int], None]


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _one(walk: _Walk, value: Any, at: str, depth: int) -> None:
    walk.schema(value, at, depth + 1)


def _list(walk: _Walk, value: Any, at: str, depth: int) -> None:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_BRANCHES:
        raise SchemaError(at, f"a list of 1 to {MAX_BRANCHES} schemas is needed")
    for index, one in enumerate(value):
        walk.schema(one, f"{at}/{index}", depth + 1)


def _named(walk: _Walk, value: Any, at: str, depth: int) -> None:
    if not isinstance(value, dict):
        raise SchemaError(at, "an object of schemas is needed")
    for name, one in value.items():
        walk.schema(one, f"{at}/{_token(name)}", depth + 1)


def _patterned(walk: _Walk, value: Any, at: str, depth: int) -> None:
    _named(walk, value, at, depth)
    for pattern in value:
        _pattern(walk, pattern, f"{at}/{_token(pattern)}", depth)


def _pattern(_walk: _Walk, value: Any, at: str, _depth: int) -> None:
    if not isinstance(value, str):
        raise SchemaError(at, "a regular expression is needed, as a text")
    try:
        check_regex(value)
    except RegexError as error:
        raise SchemaError(at, str(error)) from error


def _format(_walk: _Walk, value: Any, at: str, _depth: int) -> None:
    if value not in FORMATS:
        raise SchemaError(at, f"of formats only {', '.join(FORMATS)} are enforced here")


def _type(_walk: _Walk, value: Any, at: str, _depth: int) -> None:
    names = value if isinstance(value, list) else [value]
    if not names or any(name not in TYPES for name in names):
        raise SchemaError(at, f"one of {', '.join(TYPES)}, or a list of them, is needed")


def _names(_walk: _Walk, value: Any, at: str, _depth: int) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SchemaError(at, "a list of names is needed")


def _count(_walk: _Walk, value: Any, at: str, _depth: int) -> None:
    most = MAX_ITEMS if at.endswith(("Items", "Properties")) else MAX_COUNT
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise SchemaError(at, f"a whole number of at least 0 and at most {most} is needed")


def _number(_walk: _Walk, value: Any, at: str, _depth: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
        raise SchemaError(at, "a number of at most 2^53 is needed")
    if value and abs(value) < 1e-9:
        raise SchemaError(at, "a number so near to 0 is not told apart from it here")


def _divisor(walk: _Walk, value: Any, at: str, depth: int) -> None:
    _number(walk, value, at, depth)
    if value <= 0:
        raise SchemaError(at, "a number above 0 is needed")
    digits = f"{value:.15f}".rstrip("0").replace(".", "").lstrip("0")
    if int(digits or "0") > MAX_DIVISOR:
        raise SchemaError(at, f"{MAX_DIVISOR} is the largest that is taken, counted without the decimal point")


def _enum(walk: _Walk, value: Any, at: str, depth: int) -> None:
    if not isinstance(value, list) or not value:
        raise SchemaError(at, "a list of at least one value is needed")
    walk.count_values(len(value), at)
    for index, one in enumerate(value):
        _value(walk, one, f"{at}/{index}", depth)


def _value(walk: _Walk, value: Any, at: str, depth: int) -> None:
    """A value that an answer is to have, to the letter."""
    if depth > MAX_DEPTH:
        raise SchemaError(at, f"at most {MAX_DEPTH} values in one another are taken")
    match value:
        case bool() | None:
            pass
        case int() | float():
            _number(walk, value, at, depth)
        case str():
            if found := _UNWRITTEN.search(value):
                raise SchemaError(at, f"U+{ord(found[0]):04X} cannot be asked for")
        case list():
            for index, one in enumerate(value):
                _value(walk, one, f"{at}/{index}", depth + 1)
        case dict():
            for name, one in value.items():
                _value(walk, one, f"{at}/{_token(name)}", depth + 1)


def _not_asked(_walk: _Walk, value: Any, at: str, _depth: int) -> None:
    if value is not False:
        raise SchemaError(at, f"`{at.rpartition('/')[2]}` is not enforced here")


RULES: Mapping[str, Rule] = {
    "$defs": _named, "$ref": _Walk.reference, "additionalProperties": _one, "allOf": _list, "anyOf": _list,
    "const": _value, "definitions": _named, "discriminator": _Walk.discriminator, "enum": _enum,
    "exclusiveMaximum": _number, "exclusiveMinimum": _number, "format": _format, "items": _one, "maxItems": _count,
    "maxLength": _count, "maxProperties": _count, "maximum": _number, "minItems": _count, "minLength": _count,
    "minProperties": _count, "minimum": _number, "multipleOf": _divisor, "oneOf": _list, "pattern": _pattern,
    "patternProperties": _patterned, "prefixItems": _list, "properties": _named, "required": _names, "type": _type,
    "uniqueItems": _not_asked,
}  # fmt: skip
ENFORCED = frozenset(RULES) - {"uniqueItems"}  # which may only be false


def _check_together(given: dict[str, Any], at: str) -> None:
    """What no value can have, and what is enforced only beside other keywords."""
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"),
                      ("minimum", "maximum")):  # fmt: skip
        if low in given and high in given and given[low] > given[high]:
            raise SchemaError(f"{at}/{low}", f"no value has it: it is above `{high}`")
    for low in ("minimum", "exclusiveMinimum"):
        for high in ("maximum", "exclusiveMaximum"):
            apart = "exclusive" in low + high
            if apart and low in given and high in given and given[low] >= given[high]:
                raise SchemaError(f"{at}/{low}", f"no value has it: `{high}` is not above it")
    named = given.get("required", [])
    if given.get("minProperties", 0) > len(set(named)) + 1:  # a name of more may come twice
        raise SchemaError(f"{at}/minProperties", "one more than are `required` is the largest that is enforced here")
    if "minProperties" in given or "maxProperties" in given:
        optional = [name for name in given.get("properties", {}) if name not in named]
        if optional:
            which = "minProperties" if "minProperties" in given else "maxProperties"
            raise SchemaError(f"{at}/{which}", "it is enforced only where all `properties` are `required`")


def _check_optional(schemas: Mapping[str, Any], most: int) -> None:
    """llguidance's parser keeps some items of each property that may come next, and so many items only."""
    for at, given in schemas.items():
        if not isinstance(given, dict) or len(properties := given.get("properties", {})) <= most:
            continue
        named = set(given.get("required", []))
        bound = most * 4 // 3 if named else most  # at the beginning
        next_ones = 0
        for name in properties:
            next_ones = 0 if name in named else next_ones + 1
            bound = most * 2 if name in named else bound
            if next_ones > bound:
                why = f"at most {bound} properties may come next to choose from: let one of them be `required`"
                raise SchemaError(f"{at}/properties", why)


def _check_finite(schemas: Mapping[str, Any]) -> None:
    """Refuses what only an endless value could have: a list whose every item has to hold such a list, say.

    A schema has a finite value once those have one that it cannot do without. What is never found has none. Each need
    is looked at once.
    """
    unmet: dict[str, set[int]] = {}
    needed_by: dict[str, list[tuple[str, int]]] = {}
    for at, given in schemas.items():
        needs = _needs(given, at)
        unmet[at] = set(range(len(needs)))
        for number, choices in enumerate(needs):
            for one in choices:
                needed_by.setdefault(one, []).append((at, number))
    found = [at for at, numbers in unmet.items() if not numbers]
    for at in found:  # grows meanwhile
        for other, number in needed_by.pop(at, ()):
            if number in unmet[other]:
                unmet[other].remove(number)
                if not unmet[other]:
                    found.append(other)
    if unmet[""]:
        raise SchemaError("", "no finite value has it: it needs itself inside of itself")


def _needs(given: Any, at: str) -> list[list[str]]:
    """Of each list one schema has to have a finite value, by its pointer."""
    if not isinstance(given, dict):
        return []
    needed = [f"{at}/allOf/{index}" for index in range(len(given.get("allOf", [])))]
    if "$ref" in given:
        needed.append(pointer_of(given["$ref"]))
    kinds = given.get("type", TYPES)
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if list(kinds) == ["object"]:
        needed += [f"{at}/properties/{_token(name)}" for name in given.get("required", [])
                   if name in given.get("properties", {})]  # fmt: skip
    if list(kinds) == ["array"]:
        before = len(given.get("prefixItems", []))
        needed += [f"{at}/prefixItems/{index}" for index in range(min(before, given.get("minItems", 0)))]
        needed += [f"{at}/items"] * (given.get("minItems", 0) > before and "items" in given)
    choices = [
        [f"{at}/{keyword}/{index}" for index in range(len(given[keyword]))]
        for keyword in ("anyOf", "oneOf") if keyword in given
    ]  # fmt: skip
    return [[one] for one in needed] + choices
