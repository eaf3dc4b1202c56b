"""The sampling that a model's makers recommend, from its files: nothing, where they say nothing.

Not what a client may ask: that is SamplingParams.
"""
from pathlib import Path

from ..errors import InvalidField, ModelError
from ..policy.sampling_params import SamplingParams
from .gguf import GGUFHeader
from .json_object import read_object

Sampling = dict[str, float | int]

_KINDS: dict[str, type[float] | type[int]] = {"temperature": float, "top_p": float, "top_k": int, "min_p": float}
_GGUF = {"temperature": "general.sampling.temp"} | {k: f"general.sampling.{k}" for k in ("top_p", "top_k", "min_p")}


def of_folder(folder: Path) -> Sampling:
    """generation_config.json, where there is one and it samples at all."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    config = read_object(path)
    if config.find("do_sample", bool) is False:
        return {"temperature": 0.0}
    return _checked(path.name, {name: config.find(name, kind) for name, kind in _KINDS.items()})


def of_gguf(header: GGUFHeader) -> Sampling:
    return _checked(header.source, {name: header.find(_GGUF[name], kind) for name, kind in _KINDS.items()})


def _checked(source: str, found: dict[str, float | int | None]) -> Sampling:
    said = {name: value for name, value in found.items() if value is not None}
    try:
        SamplingParams.from_dict(said)
    except InvalidField as error:
        raise ModelError(f"{source}: {error}") from error
    return said
