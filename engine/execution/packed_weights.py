"""PackedWeights: a checkpoint's tensors as the CPU path wants them, and the file in which they are kept for next time.

Packing reads the whole model; reading what was packed takes as long as copying it. The file is a line of JSON that says
what lies where, and then the arrays.
"""
import hashlib
import json
import logging
import math
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hamdam.kernels.cpu.decoder import LayerWeights, Weights
from hamdam.kernels.cpu.facts import Shape
from hamdam.kernels.cpu.packing import HALF, Packed, from_floats, from_gguf, put, unfilled
from hamdam.kernels.cpu.tiles import GROUP, GROUP_BYTES, PANEL

from ..loading.checkpoint import Checkpoint
from ..loading.numbers import CHUNK, spans
from ..memory import give_back
from ..models.config import ModelConfig

log = logging.getLogger("hamdam.engine")
LAYOUT = 3  # to be raised whenever what packing makes looks different
ALIGNMENT = 4096
DIGEST = 64  # characters
MOVED = 8 * CHUNK  # numbers of 4 or 8 bits that are read at a time
PADDED = 32  # products add biases 32 at a time
Named = Iterator[tuple[str, Packed | NDArray[np.float32] | None]]


def shape_of(config: ModelConfig) -> Shape:
    return Shape(
        layers=config.num_layers, hidden=config.hidden_size, heads=config.num_heads, kv_heads=config.num_kv_heads,
        dim=config.head_dim, wide=config.intermediate_size, vocabulary=config.vocab_size, epsilon=config.rms_norm_eps,
        window=config.sliding_window or 0,
    )


def open_packed(checkpoint: Checkpoint, cache: Path | None) -> Weights:
    """From the cache, or packed now and left there."""
    path = None if cache is None else cache / f"{checkpoint.fingerprint[:32]}-{LAYOUT}.packed"
    found = None if path is None else _read(path)
    if found is not None:
        return _weights(found.__getitem__, checkpoint.config)
    packed = dict(_pack(checkpoint))
    if path is not None:
        _keep(path, packed)
    return _weights(packed.__getitem__, checkpoint.config)


def packed_bytes(checkpoint: Checkpoint) -> int:
    """What `open_packed` will take, to the few numbers that parts of a matrix in different bits are rounded by."""
    weights, size = checkpoint.weights, 0
    for name, shape in weights.shapes.items():
        if len(shape) == 2:
            panels, groups = -(-shape[0] // PANEL), -(-shape[1] // GROUP)
            size += panels * groups * GROUP_BYTES[weights.bits(name) or 8]
        else:
            size += 4 * math.prod(shape)
    return size


def _weights(named: Callable[[str], Any], config: ModelConfig) -> Weights:
    layers = [
        LayerWeights(**{field.name: named(f"{index}.{field.name}") for field in fields(LayerWeights)})
        for index in range(config.num_layers)
    ]
    embedding = named("embedding")
    head = embedding if config.tie_word_embeddings else named("head")
    return Weights(embedding=embedding, layers=layers, norm=named("norm"), head=head)


def _pack(checkpoint: Checkpoint) -> Named:
    """Every matrix and vector by its place, in the order in which a step reads them."""
    config = checkpoint.config
    hidden, query = config.hidden_size, config.num_heads * config.head_dim

    def matrix(inputs: int, *names: str, beside: bool = False) -> Packed:
        return _packed(checkpoint, inputs, [f"{name}.weight" for name in names], step=2 if beside else 1)

    def vector(name: str) -> NDArray[np.float32]:
        return np.ascontiguousarray(checkpoint.array(name))

    yield "embedding", matrix(hidden, "model.embed_tokens")
    for index in range(config.num_layers):
        layer, attention = f"model.layers.{index}", f"model.layers.{index}.self_attn"
        qkv = [f"{attention}.{part}_proj" for part in "qkv"]
        bias = [vector(f"{name}.bias") for name in qkv] if config.attention_bias else None
        output_bias = [vector(f"{attention}.o_proj.bias")] if config.attention_output_bias else None
        yield f"{index}.attention_norm", vector(f"{layer}.input_layernorm.weight")
        yield f"{index}.qkv", matrix(hidden, *qkv)
        yield f"{index}.qkv_bias", _padded(bias)
        yield f"{index}.query_norm", vector(f"{attention}.q_norm.weight") if config.qk_norm else None
        yield f"{index}.key_norm", vector(f"{attention}.k_norm.weight") if config.qk_norm else None
        yield f"{index}.output", matrix(query, f"{attention}.o_proj")
        yield f"{index}.output_bias", _padded(output_bias)
        yield f"{index}.mlp_norm", vector(f"{layer}.post_attention_layernorm.weight")
        yield f"{index}.gate_up", matrix(hidden, f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj", beside=True)
        yield f"{index}.down", matrix(config.intermediate_size, f"{layer}.mlp.down_proj")
    yield "norm", vector("model.norm.weight")
    if not config.tie_word_embeddings:
        yield "head", matrix(hidden, "lm_head")


def _packed(checkpoint: Checkpoint, inputs: int, names: list[str], *, step: int) -> Packed:
    """Matrices one above the other, or (step 2) two side by side; number for number where all are stored in 4 bits, or
    all in 8, else rounded to 8. Read and packed a piece at a time: of a large one's floats not all are in memory."""
    weights = checkpoint.weights
    kinds = {weights.bits(name) for name in names}
    bits = kinds.pop() if len(kinds) == 1 else None
    counts = [weights.shapes[name][0] for name in names]
    packed, first = unfilled(bits or 8, sum(counts), inputs), 0
    for name, count in zip(names, counts, strict=True):
        for rows in spans(range(count), inputs, CHUNK if bits is None else MOVED, unit=PANEL):
            stored = None if bits is None else checkpoint.quantized(name, rows)
            blocks = from_floats(checkpoint.array(name, rows)) if stored is None else from_gguf(*stored[:2])
            put(packed, blocks, first + rows.start // HALF * step, step)
        first += count // HALF if step == 1 else 1
    give_back()
    return packed


def _padded(parts: list[NDArray[np.float32]] | None) -> NDArray[np.float32] | None:
    if parts is None:
        return None
    bias = np.concatenate(parts)
    return np.pad(bias, (0, -len(bias) % PADDED))


def _keep(path: Path, packed: dict[str, Packed | NDArray[np.float32] | None]) -> None:
    """What cannot be kept is packed again next time; a full disk or a folder that is not ours ends no server."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear(path)
        _write(path, packed)
    except OSError as error:
        log.warning("packed weights cannot be kept, and are packed at every start: %s", error)


def _clear(path: Path) -> None:
    """Removes what another layout made of the same model, and what processes left half written that were killed."""
    for old in path.parent.glob(f"{path.stem.partition('-')[0]}-*.packed"):
        old.unlink(missing_ok=True)
    for part in path.parent.glob("*.part"):
        writer = part.name.split(".")[-2]
        if not (writer.isdecimal() and _is_running(int(writer))):
            part.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return process != os.getpid()


def _write(path: Path, packed: dict[str, Packed | NDArray[np.float32] | None]) -> None:
    """Whole or not at all, also when the machine fails while it is written."""
    listing: dict[str, Any] = {}
    offset = 0
    for name, value in packed.items():
        if isinstance(value, Packed):
            facts = [value.bits, value.outputs, value.inputs]
            listing[name] = {"at": offset, "size": value.data.nbytes, "packed": facts}
            offset += _up(value.data.nbytes)
        elif value is not None:
            listing[name] = {"at": offset, "size": value.nbytes}
            offset += _up(value.nbytes)
        else:
            listing[name] = None
    header = json.dumps({"size": offset, "arrays": listing}).encode()
    line = _digest(header) + header
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(line + b" " * (-(len(line) + 1) % ALIGNMENT) + b"\n")
            for value in packed.values():
                if value is not None:
                    data = value.data if isinstance(value, Packed) else value
                    file.write(data.data)
                    file.write(bytes(_up(data.nbytes) - data.nbytes))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    """None where there is no such file, or not a whole one. Native code trusts the header, hence its digest."""
    try:
        with path.open("rb") as file:
            line = file.readline().rstrip()
            digest, header = line[:DIGEST], line[DIGEST:]
            if digest != _digest(header):
                return None
            said = json.loads(header)
            room = mmap.mmap(-1, max(1, said["size"]))  # anonymous, so that it may lie in huge pages
            if hasattr(mmap, "MADV_HUGEPAGE"):
                room.madvise(mmap.MADV_HUGEPAGE)
            if file.readinto(room) != said["size"]:
                return None
    except OSError:
        return None
    data = np.frombuffer(room, np.uint8)
    found: dict[str, Any] = {}
    for name, place in said["arrays"].items():
        if place is None:
            found[name] = None
            continue
        own = data[place["at"] : place["at"] + place["size"]]
        if "packed" in place:
            bits, outputs, inputs = place["packed"]
            found[name] = Packed(bits, outputs, inputs, own)
        else:
            found[name] = own.view(np.float32)
    return found


def _digest(header: bytes) -> bytes:
    return hashlib.sha256(header).hexdigest().encode()


def _up(size: int) -> int:
    return -(-size // 64) * 64
