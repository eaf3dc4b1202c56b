"""PackedWeights: what is read back is what was packed, and no state of the cache folder ends a start."""
import errno
import json
import logging
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantised_folders import awq, compressed, fp8, write_quantised
from tiny_models import CONFIG, random_tensors, write_folder

from hamdam.engine.execution import packed_weights
from hamdam.engine.execution.packed_weights import ALIGNMENT, LAYOUT, open_packed, packed_bytes
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.kernels.cpu.decoder import LayerWeights, Weights
from hamdam.kernels.cpu.packing import Packed

BIASED = CONFIG | {"model_type": "qwen2"}
NORMED = CONFIG | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}


def checkpoint(folder: Path, config: dict[str, Any] = CONFIG, *, seed: int = 0) -> Checkpoint:
    tensors = random_tensors(config, seed=seed, head=not config["tie_word_embeddings"])
    return open_checkpoint(write_folder(folder, config, tensors))


def parts(weights: Weights) -> Iterator[tuple[str, Packed | NDArray[np.float32] | None]]:
    yield from (("embedding", weights.embedding), ("norm", weights.norm), ("head", weights.head))
    for number, layer in enumerate(weights.layers):
        yield from ((f"{number}.{field.name}", getattr(layer, field.name)) for field in fields(LayerWeights))


def contents(weights: Weights) -> dict[str, Any]:
    """All there is to know of them, to be compared."""
    return {
        name: (one.bits, one.outputs, one.inputs, one.data.tobytes()) if isinstance(one, Packed)
        else None if one is None else one.tobytes()
        for name, one in parts(weights)
    }  # fmt: skip


def only(cache: Path) -> Path:
    """The one file that there is."""
    [path] = cache.iterdir()
    return path


@pytest.mark.parametrize("config", [CONFIG, BIASED, NORMED], ids=["plain", "biases", "norms of heads, tied"])
def test_what_is_read_back_is_what_was_packed(tmp_path: Path, config: dict[str, Any]) -> None:
    model, cache = checkpoint(tmp_path / "model", config), tmp_path / "cache"
    packed = open_packed(model, None)
    assert contents(open_packed(model, cache)) == contents(packed)
    written = only(cache).stat()
    read = open_packed(model, cache)
    assert contents(read) == contents(packed)
    assert only(cache).stat().st_mtime_ns == written.st_mtime_ns
    assert (read.head is read.embedding) == config["tie_word_embeddings"]
    assert (read.layers[0].qkv_bias is None) == (config is not BIASED)
    assert (read.layers[1].query_norm is None) == (config is not NORMED)


@pytest.mark.parametrize("config", [{}, {"model_type": "qwen2"}, {"model_type": "qwen3", "tie_word_embeddings": True}])
def test_their_size_is_known_before_anything_is_packed(tmp_path: Path, config: dict[str, Any]) -> None:
    model = checkpoint(tmp_path, CONFIG | {"hidden_size": 64, "head_dim": 16, "vocab_size": 288} | config)
    packed = dict(parts(open_packed(model, None)))
    if model.config.tie_word_embeddings:
        del packed["head"]
    sizes = [one.data.nbytes if isinstance(one, Packed) else one.nbytes for one in packed.values() if one is not None]
    assert packed_bytes(model) == sum(sizes)


def test_matrices_that_are_read_lie_as_native_code_needs_them(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model", BIASED)
    open_packed(model, tmp_path / "cache")
    for name, one in parts(open_packed(model, tmp_path / "cache")):
        data = one.data if isinstance(one, Packed) else one
        assert data is None or data.ctypes.data % 64 == 0, name


def test_another_model_is_another_file_and_each_is_found_again(tmp_path: Path) -> None:
    models = [checkpoint(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    packed = [contents(open_packed(model, tmp_path / "cache")) for model in models]
    assert packed[0] != packed[1]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert [contents(open_packed(model, tmp_path / "cache")) for model in models] == packed


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_to(size: int) -> Any:
    return lambda path: os.truncate(path, size)


def with_header(change: Any) -> Any:
    def spoil(path: Path) -> None:
        whole = path.read_bytes()
        line, rest = whole[:ALIGNMENT], whole[ALIGNMENT:]
        path.write_bytes(change(line) + rest)

    return spoil


def moved(line: bytes) -> bytes:
    """A matrix is said to be larger than the whole file is."""
    found = json.loads(line[packed_weights.DIGEST :])
    found["arrays"]["norm"]["size"] = 1 << 40
    return line[: packed_weights.DIGEST] + json.dumps(found).encode() + b"\n"


SPOILED = {
    "its last byte is missing": cut_off,
    "it is empty": cut_to(0),
    "it ends in its first line": cut_to(100),
    "it ends behind its first line": cut_to(ALIGNMENT),
    "it says nothing": with_header(lambda line: b"5\n"),
    "it says nothing that can be read": with_header(lambda line: b"\xff" * 200 + b"\n"),
    "a number in it is another": with_header(lambda line: line.replace(b'"size": ', b'"size": 9', 1)),
    "it points outside of itself": with_header(moved),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_file_that_is_not_whole_is_made_anew(tmp_path: Path, spoil: Any) -> None:
    model, cache = checkpoint(tmp_path / "model"), tmp_path / "cache"
    packed = contents(open_packed(model, cache))
    whole = only(cache).read_bytes()
    spoil(only(cache))
    assert contents(open_packed(model, cache)) == packed
    assert only(cache).read_bytes() == whole


@pytest.mark.parametrize("kind", ["bfloat16", "awq", "fp8"])
def test_of_a_matrix_only_a_piece_is_in_memory_beside_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A piece is read, made float32 and rounded: 28 bytes a number. AWQ's words lie by input: each piece needs all."""
    config = CONFIG | {"vocab_size": 6000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 1}
    if kind == "bfloat16":
        tensors = {name: values.bfloat16() for name, values in random_tensors(config).items()}
        write_folder(tmp_path, config, tensors)
    elif kind == "awq":
        said = {"quant_method": "awq", "bits": 4, "group_size": 128}
        write_quantised(tmp_path, config, said, partial(awq, np.random.default_rng(0), group=128))
    else:
        said = compressed("float-quantized", type="float")
        write_quantised(tmp_path, config, said, partial(fp8, np.random.default_rng(0)))
    numbers, model = 1 << 14, open_checkpoint(tmp_path)
    monkeypatch.setattr(packed_weights, "CHUNK", numbers)
    monkeypatch.setattr(packed_weights, "MOVED", numbers)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        packed = open_packed(model, None)
        kept, most = (found - before for found in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    bytes_kept = {id(one): (one.data if isinstance(one, Packed) else one).nbytes
                  for _, one in parts(packed) if one is not None}  # fmt: skip
    assert kept >= sum(bytes_kept.values()) > 3 << 20
    words = 256 * 1024 // 2 if kind == "awq" else 0
    assert most - kept < 28 * numbers + 2 * words + (32 << 10)


def test_a_full_disk_is_said_once_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(packed_weights.os, "fsync", full)
    model, cache = checkpoint(tmp_path / "model"), tmp_path / "cache"
    assert contents(open_packed(model, cache)) == contents(open_packed(model, None))
    assert not list(cache.iterdir())
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "packed at every start" in record.message
    assert os.strerror(errno.ENOSPC) in record.message


def test_a_cache_that_cannot_be_a_folder_keeps_nothing_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    model = checkpoint(tmp_path / "model")
    for cache in (tmp_path / "file", tmp_path / "file" / "cache"):
        caplog.clear()
        assert contents(open_packed(model, cache)) == contents(open_packed(model, None))
        assert len(caplog.records) == 1


def test_a_file_that_may_not_be_read_is_like_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = checkpoint(tmp_path / "model"), tmp_path / "cache"
    packed = contents(open_packed(model, cache))
    name = only(cache).name
    only(cache).unlink()
    (cache / name).mkdir()  # even root cannot read that
    assert contents(open_packed(model, cache)) == packed


def test_what_a_killed_process_left_half_written_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    model, cache = checkpoint(tmp_path / "model"), tmp_path / "cache"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    cache.mkdir()
    left = [cache / f"abc-{LAYOUT}.{process}.part" for process in (dead.pid, os.getpid())]
    underway = cache / f"abc-{LAYOUT}.{os.getppid()}.part"
    for part in (*left, underway):
        part.write_bytes(b"half")
    open_packed(model, cache)
    assert not any(part.exists() for part in left)
    assert underway.exists()


def test_what_another_layout_made_of_a_model_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other, cache = checkpoint(tmp_path / "model"), checkpoint(tmp_path / "other", seed=1), tmp_path / "cache"
    for one in (model, other):
        open_packed(one, cache)
    before = {path.name for path in cache.iterdir()}
    monkeypatch.setattr(packed_weights, "LAYOUT", LAYOUT + 1)
    packed = contents(open_packed(model, cache))
    after = {path.name for path in cache.iterdir()}
    assert len(before) == len(after) == 2
    assert len(before & after) == 1  # the other model's
    assert contents(open_packed(model, cache)) == packed
