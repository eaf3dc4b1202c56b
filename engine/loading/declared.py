"""Declared: a small file beside a model of a new name and a known shape, which says what it is to be computed like.

    {"model_type": "newcomer", "like": "qwen2", "set": {"tie_word_embeddings": true}}

In a folder it is hamdam.json, beside NAME.gguf it is NAME.hamdam.json. `model_type` is what the model calls itself
(general.architecture in GGUF): for another one the file is refused. `set`, which may be missing, goes before what the
model's own config or metadata says. Everything is then checked as it is of a model of that kind: a tensor too few or
too many is refused. It reads no weights, and knows no kinds.
"""
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .gguf import GGUFHeader
from .json_object import JsonObject, parse_object, read_bounded

NAME = "hamdam.json"
HINT = f"what has one of these shapes can be declared in {NAME}, as the README says"
KEYS = frozenset({"model_type", "like", "set"})


def of_folder(folder: Path, config: JsonObject) -> JsonObject:
    """config.json as it is declared; itself where nothing is."""
    path = folder / NAME
    if not path.is_file():
        return config
    like, values = _read(path, read_bounded(path), config.need("model_type", str))
    return JsonObject(f"{config.source} as {NAME} has it", {**config.values, **values, "model_type": like})


def of_gguf(path: Path, header: GGUFHeader) -> GGUFHeader:
    """The header as it is declared; itself where nothing is. Its keys are under the name of the kind it is like."""
    beside = path.with_suffix(f".{NAME}")
    if not beside.is_file():
        return header
    kind, data = header.need("general.architecture", str), read_bounded(beside)
    like, values = _read(beside, data, kind)
    own = f"{kind}."
    renamed = {f"{like}.{key.removeprefix(own)}" if key.startswith(own) else key: v for key, v in header.values.items()}
    return replace(
        header, source=f"{header.source} as {beside.name} has it",
        values={**renamed, **values, "general.architecture": like},
        digest=hashlib.sha256(header.digest.encode() + data).hexdigest(),
    )


def _read(path: Path, data: bytes, kind: str) -> tuple[str, dict[str, Any]]:
    """`like` and `set`."""
    said = parse_object(path.name, data)
    for key in said.values.keys() - KEYS:
        raise ModelError(f"{said.source}: {key[:80]!r} is none of {', '.join(sorted(KEYS))}")
    if (named := said.need("model_type", str)) != kind:
        raise ModelError(f"{said.source}: it is of the model_type {named[:80]!r}, and the model is a {kind[:80]!r}")
    values = said.object("set")
    return said.need("like", str), {} if values is None else dict(values.values)
