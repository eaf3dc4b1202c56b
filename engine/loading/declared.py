"""Declared: a small file beside a model of a new name and a known shape, which says what it is to be computed like.

    {"model_type": "newcomer", "like": "qwen2", "set": {"tie_word_embeddings": true}}

In a folder it is hamdam.json, beside NAME.gguf it is NAME.hamdam.json. `model_type` is what the model calls itself
(general.architecture in GGUF): for another one the file is refused. `set`, which may be missing, goes before what the
model's own config or metadata says; what it sets that nothing reads is refused by name. Everything is then checked as
it is of a model of that kind: a tensor too few or too many is refused. It reads no weights, and knows no kinds.
"""
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .gguf import GGUFHeader
from .json_object import JsonObject, parse_object, read_bounded
from .values import Values

NAME = "hamdam.json"
HINT = f"what has one of these shapes can be declared in {NAME}, as the README says"
KEYS = frozenset({"model_type", "like", "set"})


class Asked(Mapping[str, Any]):
    """What files say, with what is set before it, and for which of its keys somebody asked."""

    def __init__(self, source: str, said: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        self.source, self.changes, self.keys_asked = source, changes, set[str]()
        self._values = {**said, **changes}

    def __getitem__(self, key: str) -> Any:
        self.keys_asked.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def of_folder(folder: Path, config: JsonObject) -> JsonObject:
    """config.json as it is declared; itself where nothing is."""
    path = folder / NAME
    if not path.is_file():
        return config
    like, values = _read(path, read_bounded(path), "model_type", config.need("model_type", str))
    asked = Asked(NAME, {**config.values, "model_type": like}, values)
    return JsonObject(f"{config.source} as {NAME} has it", asked)


def of_gguf(path: Path, header: GGUFHeader) -> GGUFHeader:
    """The header as it is declared; itself where nothing is. Its keys are under the name of the kind it is like."""
    beside = path.with_suffix(f".{NAME}")
    if not beside.is_file():
        return header
    kind, data = header.need("general.architecture", str), read_bounded(beside)
    like, values = _read(beside, data, "general.architecture", kind)
    own = f"{kind}."
    renamed = {f"{like}.{key.removeprefix(own)}" if key.startswith(own) else key: v for key, v in header.values.items()}
    return replace(
        header, source=f"{header.source} as {beside.name} has it",
        values=Asked(beside.name, {**renamed, "general.architecture": like}, values),
        digest=hashlib.sha256(header.digest.encode() + data).hexdigest(),
    )


def refuse_unread(said: Values) -> None:
    """To be called when all was read: who sets what nothing asks for has misspelt it, or expects what is not done."""
    values = said.values
    if isinstance(values, Asked) and (unread := sorted(values.changes.keys() - values.keys_asked)):
        known = ", ".join(sorted(values.keys_asked))
        raise ModelError(f"{values.source}: nothing reads {unread[0][:80]!r}, which is set (what is read: {known})")


def _read(path: Path, data: bytes, key_of_kind: str, kind: str) -> tuple[str, Mapping[str, Any]]:
    """`like` and `set`."""
    said = parse_object(path.name, data)
    for key in said.values.keys() - KEYS:
        raise ModelError(f"{said.source}: {key[:80]!r} is none of {', '.join(sorted(KEYS))}")
    if (named := said.need("model_type", str)) != kind:
        raise ModelError(f"{said.source}: it is of the model_type {named[:80]!r}, and the model is a {kind[:80]!r}")
    values = said.object("set") or JsonObject(said.source, {})
    if key_of_kind in values.values:
        raise ModelError(f"{values.source}: {key_of_kind} is what like says")
    return said.need("like", str), values.values
