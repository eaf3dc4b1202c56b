"""The tokenizer files of a Hugging Face folder, and what holds for every tokenizer. Not GGUF's (gguf/tokenizer.py)."""
import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..chat import ChatMessage
from ..errors import InvalidField, ModelError
from ..text.chat_template import ChatTemplate
from ..text.harmony import ENDS, speaks_harmony
from .json_object import JsonObject, read_bounded, read_object

log = logging.getLogger("hamdam.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """As in Checkpoint, which says what each means."""

    tokenizer: Tokenizer
    bos_id: int | None
    bos_text: str
    eos_text: str
    eos_ids: frozenset[int]
    chat_template: str | None


_ANSWER, _SOME_TIME = "Qanswerq", datetime(2000, 1, 1)


def read_tokenizer_files(folder: Path, config: JsonObject, vocab_size: int) -> TokenizerFiles:
    """config: config.json. tokenizer.json must be there; the others may. `eos_ids` is the union of what any names."""
    tokenizer = _tokenizer(folder / "tokenizer.json")
    _check_vocabulary(folder.name, tokenizer, vocab_size)
    about = [_optional(folder / name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
    bos_text, eos_text = (_special(about, key) for key in ("bos_token", "eos_token"))
    template = _chat_template(folder, about[0])
    ends = {tokenizer.token_to_id(eos_text), *ends_by_template(template, tokenizer, bos_text, eos_text)}
    for file in (config, _optional(folder / "generation_config.json")):
        ends |= _eos_ids(file, vocab_size)
    bos = tokenizer.token_to_id(bos_text) if bos_text else config.find("bos_token_id", int)
    return TokenizerFiles(
        tokenizer=tokenizer,
        bos_id=first_id(tokenizer, bos),
        bos_text=bos_text,
        eos_text=eos_text,
        eos_ids=frozenset(end for end in ends if end is not None),
        chat_template=template,
    )


def _check_vocabulary(source: str, tokenizer: Tokenizer, rows: int) -> None:
    ids = tokenizer.get_vocab(with_added_tokens=False).values()
    if len(set(ids)) < len(ids):  # only one of two would survive a copy, and its merges break then
        raise ModelError(f"{source}: two pieces of the vocabulary have one id")
    check_rows(source, max([*ids, *tokenizer.get_added_tokens_decoder()], default=-1), rows)


def check_rows(source: str, largest: int, rows: int) -> None:
    """An id beyond the embedding would be an index out of range, in the middle of somebody's answer."""
    if largest >= rows:
        raise ModelError(f"{source}: the tokenizer has the id {largest}, the embedding only {rows} rows")


def first_id(tokenizer: Tokenizer, bos: int | None) -> int | None:
    """`bos` where the tokenizer's own post-processor puts it before a text, else None."""
    return bos if bos is not None and tokenizer.encode("").ids[:1] == [bos] else None


def ends_by_template(
    template: str | None, tokenizer: Tokenizer, bos_text: str, eos_text: str
) -> set[int | None]:
    """What ends an answer by the template alone. In harmony what it writes after an answer ends thoughts as well."""
    if speaks_harmony(template, [token.content for token in tokenizer.get_added_tokens_decoder().values()]):
        return {tokenizer.token_to_id(token) for token in ENDS}
    return {end_of_turn(template, tokenizer, bos_text, eos_text)}


def end_of_turn(template: str | None, tokenizer: Tokenizer, bos_text: str, eos_text: str) -> int | None:
    """The added token that the template writes after an answer: what the model learnt to end one with, whatever the
    files call its end. None where a letter comes first, or where the template refuses the conversation."""
    if template is None:
        return None
    conversation = [ChatMessage("user", "Hello"), ChatMessage("assistant", _ANSWER), ChatMessage("user", "Thanks")]
    try:
        text = ChatTemplate(template, bos_text=bos_text, eos_text=eos_text).render(conversation, now=_SOME_TIME)
    except InvalidField:
        return None
    after = text.partition(_ANSWER)[2].lstrip()
    added = tokenizer.get_added_tokens_decoder().items()
    following = {token.content: number for number, token in added if token.content and after.startswith(token.content)}
    return following[max(following, key=len)] if following else None


def _tokenizer(path: Path) -> Tokenizer:
    data = read_bounded(path)
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except BaseException as error:  # the library raises nothing more exact; a panic of its Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        line = " ".join(str(error).split())[:120]
        raise ModelError(f"{path.name}: not a tokenizer ({line})") from error
    tokenizer.no_truncation()  # a file saved after training says to cut, and to fill up
    tokenizer.no_padding()
    return tokenizer


def _optional(path: Path) -> JsonObject:
    return read_object(path) if path.is_file() else JsonObject(path.name, {})


def _special(about: list[JsonObject], key: str) -> str:
    """A text, or an object with the text as its content, from the first file that has one."""
    for file in about:
        if isinstance(file.values.get(key), dict):
            entry = file.object(key)
            return entry.need("content", str) if entry else ""
        if (text := file.find(key, str)) is not None:
            return text
    return ""


def _eos_ids(file: JsonObject, rows: int) -> set[int | None]:
    """An int, a list of them, or null. One beyond the vocabulary can never be drawn, so that nothing is lost without
    it; but whoever made the files meant something by it, hence a warning."""
    value: Any = file.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    if not all(end is None or type(end) is int for end in ids):
        raise ModelError(f"{file.source}: eos_token_id is neither an int nor a list of them")
    known = {end for end in ids if end is None or 0 <= end < rows}
    if unknown := sorted(set(ids) - known):
        log.warning(
            "%s: eos_token_id %s is no id of the vocabulary (0 to %d), and ends nothing",
            file.source, ", ".join(map(str, unknown[:4])), rows - 1,
        )
    return known


def _chat_template(folder: Path, about: JsonObject) -> str | None:
    """chat_template.jinja, else tokenizer_config.json: a text, or a list of named ones, of which "default" is ours;
    else chat_template.json, where models that read pictures too have theirs."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return read_bounded(file).decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{file.name}: not UTF-8") from error
    if about.values.get("chat_template") is None:
        about = _optional(folder / "chat_template.json")
    value = about.values.get("chat_template")
    if not isinstance(value, list):
        return about.find("chat_template", str)
    named = [JsonObject(about.source, entry) for entry in value if isinstance(entry, dict)]
    return next((entry.need("template", str) for entry in named if entry.find("name", str) == "default"), None)
