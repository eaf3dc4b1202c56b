"""The grammar of a call that has to be made: Lark as llguidance has it, in its model's format. It compiles nothing."""
import json
from collections.abc import Sequence

from ..chat import Tool
from .call_format import HERMES, LLAMA, CallFormat

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(form: CallFormat, tools: Sequence[Tool], *, several: bool) -> str:
    """One call of these tools, or `several`, the arguments by the tool's schema; nothing before it, nothing after."""
    word = "parameters" if form is LLAMA else "arguments"
    opening, between, closing = ("", "; ", "")
    if form is HERMES:
        opening, between, closing = (f"{form.opener}\n", "\n", f"\n{form.closer}")
    elif form is not LLAMA:
        opening, between, closing = (f"{form.opener} [", "", "]")
    more = f" ({_text(between)} one)*" if several and between else ""
    lines = [f"start: one{more}", f"one: {_text(opening)} call {_text(closing)}"]
    lines.append(f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}")
    for index, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{word}": '
        lines.append(f"call_{index}: {_text(head)} %json {_schema(tool)} {_text('}')}")
    return "\n".join(lines)


def _schema(tool: Tool) -> str:
    schema = NO_ARGUMENTS if tool.parameters is None else {**tool.parameters, "type": "object"}
    return json.dumps(schema, ensure_ascii=False).replace("%json", "\\u0025json")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
