"""The rotary keys of a config.json as a Rope, in the spellings that exist. Not what they do: models/rotary.py."""
import math

from ..errors import ModelError
from ..models.rope import Rope
from .json_object import JsonObject

_NEEDED = {  # what each kind must say, beside what it may
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_TRAINED = "original_max_position_embeddings"


def rope_of(config: JsonObject, said: JsonObject | None, *, theta: float, trained: int) -> Rope:
    """said: `rope_parameters` (since transformers 5) or `rope_scaling`. theta: where `said` has none.
    trained: max_position_embeddings. ModelError names a key that is missing."""
    if said is None:
        return Rope(theta=theta)
    own_theta = said.find("rope_theta", float)
    theta = theta if own_theta is None else own_theta
    kind = said.find("rope_type", str) or said.find("type", str) or "default"
    if kind in ("su", "yarn") and "short_factor" in said.values:  # what Phi 3 called it first
        kind = "longrope"
    if kind == "default":
        return Rope(theta=theta)
    original = config.find(_TRAINED, int)
    if original is None:
        own_original = said.find(_TRAINED, float)
        original = trained if own_original is None else int(own_original)
    for key in _NEEDED.get(kind, ()):
        if not (said.find(key, float) or 0) > 0:
            raise ModelError(f"{said.source}: {key} is missing or not above 0")
    if kind == "llama3" and _TRAINED not in {*config.values, *said.values}:
        raise ModelError(f"{said.source}: {_TRAINED} is missing")
    factor = said.find("factor", float)
    if factor is None:
        factor = trained / max(original, 1)
    return Rope(
        theta=theta,
        kind=kind,
        factor=factor,
        original_context=trained if kind == "dynamic" else original,
        low_freq_factor=said.find("low_freq_factor", float) or 1.0,  # above 0 where it counts
        high_freq_factor=said.find("high_freq_factor", float) or 4.0,
        beta_fast=said.find("beta_fast", float) or 32.0,
        beta_slow=said.find("beta_slow", float) or 1.0,
        truncate=said.find("truncate", bool) is not False,
        attention_factor=_attention_factor(said, kind, factor),
        short_factors=said.numbers("short_factor"),
        long_factors=said.numbers("long_factor"),
    )


def _attention_factor(said: JsonObject, kind: str, factor: float) -> float | None:
    """The factor itself, or the two numbers whose quotient it is in yarn."""
    own = said.find("attention_factor", float)
    over, under = said.find("mscale", float), said.find("mscale_all_dim", float)
    if own is None and kind == "yarn" and over and under and factor > 1:
        return (0.1 * over * math.log(factor) + 1) / (0.1 * under * math.log(factor) + 1)
    return own if kind in ("yarn", "longrope") else None
