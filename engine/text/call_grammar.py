"""The grammar of calls: Lark as llguidance has it, in the format of their model. It compiles nothing.

Where calls may stand beside something else that begins alike (JSON beside JSON), that is a grammar of its own, and the
matcher follows both: one lexer would take the longest it can of either.
"""
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from ..chat import Tool
from .call_format import HERMES, LLAMA, MISTRAL, CallFormat

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
ANY_ARGUMENTS = {"type": "object"}
_BARE_TEXT = r"/(?s:[ \t\n\r;,]*([^ \t\n\r;,{].*)?)/"
"""What does not begin as a call without an opener does."""


def call_grammar(form: CallFormat, tools: Sequence[Tool], held: Collection[str], *, several: bool) -> str:
    """One call of these tools, or `several`; nothing before it, nothing after. held: as below."""
    if form is LLAMA:
        start = "start: rest"
    else:
        line = _text("\n") if form is HERMES else ""  # a model that ends with one is not made to call once more
        more = f" ({line} one)* {f'{line}?' if line else ''}" if several else ""
        start = f"start: one{more}\none: {_text(form.opener)} rest"
    return "\n".join([start, *_rules(form, tools, held, several)])


def free_grammar(form: CallFormat, tools: Sequence[Tool], held: Collection[str], *, several: bool) -> str:
    """Any text, and calls of these tools in it, each from what opens it on.

    held: the names of tools whose arguments follow their schemas; those of others are any JSON object.
    """
    any_text = _BARE_TEXT if form.bare else "/(?s:.*)/"
    lines = [
        "start: (opened rest)* TEXT",
        "opened[lazy]: OPENED",
        f"OPENED: TEXT {_text(form.opener)}",
        f"TEXT: {any_text} & ~/(?s:.*){re.escape(form.opener)}(?s:.*)/",
    ]
    return "\n".join(lines + _rules(form, tools, held, several))


def _rules(form: CallFormat, tools: Sequence[Tool], held: Collection[str], several: bool) -> list[str]:
    """`rest` is what stands behind an opener."""
    more = {HERMES: "", MISTRAL: '(", " call)*', LLAMA: '("; " call)*'}[form] if several else ""
    if form is HERMES:
        rest = rf'"\n" call {_text(chr(10) + form.closer)}'
    elif form is MISTRAL:
        rest = f'" "? "[" call {more} "]" | named'
    else:
        rest = f"call {more}"
    numbers = range(len(tools))
    lines = [f"rest: {rest}", f"call: {' | '.join(f'call_{number}' for number in numbers)}"]
    if form.named:
        lines.append(f"named: {' | '.join(f'named_{number}' for number in numbers)}")
    word = "parameters" if form is LLAMA else "arguments"
    for number, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{word}": '
        lines.append(f"call_{number}: {_text(head)} arguments_{number} {_text('}')}")
        if form.named:
            lines.append(f'named_{number}: {_text(tool.name)} "[ARGS]"? arguments_{number}')
        lines.append(f"arguments_{number}: {arguments(tool, tool.name in held)}")
    return lines


def arguments(tool: Tool, held: bool) -> str:
    """Those of a call: by the tool's schema where that is to be held, else any JSON object."""
    schema: dict[str, Any] = ANY_ARGUMENTS
    if held:
        schema = NO_ARGUMENTS if tool.parameters is None else {**tool.parameters, "type": "object"}
    return "%json " + json.dumps(schema, ensure_ascii=False).replace("%json", "\\u0025json")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
