"""`hamdam model check`: says what a model is and whether it will run here, for people or as JSON. It finds out nothing:
that is the engine's."""
import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from hamdam.engine import EngineConfig, ModelCheck, ModelFacts, ModelFit, Room, check_model

from ..settings import Settings
from ..storage.folder import DataFolder
from .sources import find_model

SMALL = 0.005  # a share that is not worth a word


def run_model(asked: argparse.Namespace, settings: Settings) -> int:
    """The exit status: 1 where the model will not run here. Raises PullError where there is none of the name."""
    folder = DataFolder(settings.data)
    checked = check_model(
        EngineConfig(
            model=find_model(asked.model, folder.models), device=settings.device, dtype=settings.dtype,
            quantize=settings.quantize, kv_dtype=settings.kv_dtype, kv_memory=settings.kv_memory,
            gpu_memory=settings.gpu_memory, max_context=settings.max_context, cache=folder.cache,
        )
    )
    print(json.dumps(asdict(checked), indent=2) if asked.json else "\n".join(_lines(checked)))
    return int(checked.why_not is not None)


def _lines(checked: ModelCheck) -> Iterator[str]:
    yield _line(checked.path)
    if checked.facts is not None:
        yield from _said(_about(checked.facts))
    if checked.fit is not None:
        yield from _said(_here(checked.fit))
    yield from _said([("here", "it runs" if checked.why_not is None else f"it does not run: {_line(checked.why_not)}")])


def _said(facts: list[tuple[str, str]]) -> Iterator[str]:
    for name, text in facts:
        yield f"  {name:<14} {text}"


def _about(facts: ModelFacts) -> list[tuple[str, str]]:
    heads = f"{facts.heads} heads of {facts.head_dim}, {facts.kv_heads} of them for KV"
    held = ", ".join(f"{kind} {share:.0%}" for kind, share in facts.formats.items() if share >= SMALL)
    ends = ", ".join(f"{_line(name)} ({id})" for id, name in facts.ends.items())
    return [
        ("architecture", f"{facts.architecture}: {facts.layers} layers of {facts.hidden}, {heads}"),
        ("parameters", f"{_count(facts.parameters)}, as {held} ({_bytes(facts.file_bytes)})"),
        ("context", f"{facts.max_context:,} tokens"),
        ("tokenizer", f"{facts.tokenizer}, {facts.vocabulary:,} tokens"),
        ("template", "there is one" if facts.has_template else "there is none: it completes texts, and refuses chats"),
        ("ends", ends or "none: an answer goes on to its longest"),
    ]


def _here(fit: ModelFit) -> list[tuple[str, str]]:
    slower = f"; not native code, which is several times faster: {fit.slower}" if fit.slower else ""
    weights = ", ".join(f"{_bytes(size)} as {dtype}" for dtype, size in fit.weights.items())
    return [
        ("computed by", fit.path + slower),
        ("weights", weights),
        ("KV", f"{_bytes(fit.kv_per_token)} a token in {fit.kv_dtype}, {_bytes(fit.kv_memory)} in all (--kv-memory)"),
        *(("" if at else "conversations", _room(room)) for at, room in enumerate(fit.rooms)),
        ("memory", f"{_bytes(fit.needed)} needed, {_bytes(fit.memory.free)} free of {_bytes(fit.memory.total)}"),
    ]


def _room(room: Room) -> str:
    return f"of {room.tokens:,} tokens: {room.as_set} at a time; {room.at_most} with all that is free as --kv-memory"


def _line(text: str) -> str:
    """Out of a file that may hold anything."""
    return " ".join(text.split()) if text.isprintable() else " ".join(repr(text)[1:-1].split())


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _bytes(number: int) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
