"""Grammars: from what clients ask of the form of their answers to compiled grammars, each once. It follows no answer.

Compiling runs on threads of its own. What stops it is llguidance's own account of its work (LIMITS), which ends a
compile within about a second of one core, whatever the source: no thread computes on for nobody.
"""
import asyncio
import json
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from ..errors import InvalidField
from ..policy.structured_outputs import FIELD, StructuredOutputs
from .json_schema import pointers_to, regexes
from .lexicon import Lexicon
from .matcher import STUCK, Grammar, plain
from .sources import lark, quoted

KEPT, KEPT_FOR_ONE = 64, 4  # compiled grammars in memory: in all, and of those that one owner brought
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,  # some 20 ms
    "step_lexer_fuel": 200_000,  # a mask: some 10 ms
    "step_max_items": 50_000,
    "max_items_in_row": 2000,  # MAX_OPTIONAL of json_schema.py; time goes with the square of it
    "max_lexer_states": 100_000,  # some 10 MB; three a character of a string whose length is bounded
    "max_grammar_size": 500_000,
}
ITEMS_OF_GRAMMAR = 1000  # the same of a grammar, which can be ambiguous at every byte: some 20 ms a mask
_WHERE = re.compile(r"^at (\d+)\((\d+)\): ")


class Grammars:
    """Belongs to an event loop, but for what its threads do."""

    def __init__(self, texts: Callable[[], Sequence[bytes]]) -> None:
        """texts: the bytes of every id that has a logit, as Lexicon takes them."""
        self._texts = texts
        self._lexicon: Lexicon | None = None
        self._making = threading.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="hamdam-grammar")
        self._kept: OrderedDict[StructuredOutputs, tuple[Grammar, str]] = OrderedDict()  # and who brought it
        self._compiling: dict[StructuredOutputs, asyncio.Future[Grammar]] = {}

    def prepare(self) -> None:
        """Begins to make the lexicon, on a thread. Else the first client waits for it, and everybody else with them:
        it is made with Python's lock held."""
        if find_spec("llguidance") is not None:
            self._threads.submit(self._the_lexicon)

    def prepared(self) -> None:
        """Returns when the lexicon is made that was begun."""
        if find_spec("llguidance") is not None:
            self._the_lexicon()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def compiled(self, asked: StructuredOutputs, owner_id: str) -> Grammar:
        """Who asks for what is being compiled waits for that. Raises InvalidField."""
        kept = self._kept.get(asked)
        if kept is not None and not kept[0].worn:
            self._kept.move_to_end(asked)
            return kept[0]
        running = self._compiling.get(asked)
        if running is None:
            loop = asyncio.get_running_loop()
            running = self._compiling[asked] = loop.run_in_executor(self._threads, self._compile, asked)
            running.add_done_callback(lambda done: self._done(asked, done, owner_id))
        return await asyncio.shield(running)

    def _done(self, asked: StructuredOutputs, done: "asyncio.Future[Grammar]", owner_id: str) -> None:
        del self._compiling[asked]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[asked] = done.result(), owner_id
        self._kept.move_to_end(asked)
        of_owners = Counter(owner for _, owner in self._kept.values())
        if of_owners[owner_id] > KEPT_FOR_ONE:
            del self._kept[next(key for key, (_, owner) in self._kept.items() if owner == owner_id)]
        elif len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    # On its threads --------------------------------------------------------------------------------------------------

    def _the_lexicon(self) -> Lexicon:
        with self._making:
            if self._lexicon is None:
                self._lexicon = Lexicon(self._texts())
            return self._lexicon

    def _compile(self, asked: StructuredOutputs) -> Grammar:
        source = lark(asked)
        try:
            import llguidance
        except ImportError as error:
            raise InvalidField(FIELD, "llguidance is not installed on this server") from error
        lexicon = self._the_lexicon()
        ambiguous = {"max_items_in_row": ITEMS_OF_GRAMMAR} if asked.kind == "grammar" else {}
        limits = llguidance.LLParserLimits(verbose_errors=False, **LIMITS | ambiguous)
        start = llguidance.LLMatcher(lexicon.tokenizer, source, log_level=0, limits=limits)
        if start.is_error():
            raise InvalidField(f"{FIELD}.{asked.kind}", _why(asked, start.get_error(), llguidance.LLMatcher))
        grammar = Grammar(start, lexicon, terse=asked.kind == "json")
        words, [may_end] = lexicon.masks([start])
        if start.is_error() and not start.get_error().startswith(STUCK):
            raise InvalidField(f"{FIELD}.{asked.kind}", plain(start.get_error()))
        if start.is_error() or not (may_end or words.any()):
            raise InvalidField(f"{FIELD}.{asked.kind}", "no answer can follow it")
        return grammar


def _why(asked: StructuredOutputs, error: str, compiler: Any) -> str:
    """What llguidance says, and where: by a pointer, or lines counted as the client wrote them."""
    line = plain(error)
    found = _WHERE.match(line)
    if found is None:
        return line
    rest = line[found.end() :].removeprefix("failed to compile JSON schema: ")
    if asked.kind != "json":
        return f"line {max(1, int(found[1]) - 1)}, column {found[2]}: {rest}"
    schema = json.loads(asked.source)
    if rest.startswith("oneOf"):
        places = " or ".join(pointers_to(schema, "oneOf")[:3])
        return f"at {places}: the branches cannot be told apart; say `anyOf`, or give each a property with a `const`"
    for pointer, regex in regexes(schema) if "regex" in rest or "lookaround" in rest else ():
        if wrong := compiler.validate_grammar(f"start: /{quoted(regex)}/"):
            return f"at {pointer}: {plain(wrong)}"
    return rest
