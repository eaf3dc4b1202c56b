"""The header of a safetensors file: hostile ones are refused in one line; tensors come back in the file's own dtype."""
import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.safetensors import open_safetensors
from hamdam.engine.loading.torch_tensors import as_tensor


def entry(begin: int, end: int, shape: Any = (4,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file_of(header: bytes | dict[str, Any], data: int = 16, *, length: int | None = None) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + bytes(data)


HOSTILE = {
    "a header of 2**40 bytes": file_of(b"{}", length=2**40),
    "a header of 2**63 bytes": file_of(b"{}", length=2**63),
    "a header of 33 MiB": file_of(b"{}", length=33 << 20),
    "an empty file": b"",
    "four bytes": b"\1\0\0\0",
    "no JSON": file_of(b"}{"),
    "no object": file_of(b"[]"),
    "no UTF-8": file_of(b'{"\xff": 1}'),
    "lists nested 1,900 deep": file_of(b'{"t":' + b"[" * 1900),
    "lists nested 900 deep": file_of(b'{"t":' + b"[" * 900 + b"]" * 900 + b"}"),
    "one name twice": file_of(b'{"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"t":[]}'),
    "a number of 1,000 digits": file_of({"t": entry(0, 16, [10**1000])}),
    "NaN": file_of(b'{"t":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}'),
    "no entry": file_of({"t": None}),
    "a list for an entry": file_of({"t": [1, 2]}),
    "no shape": file_of({"t": {"dtype": "F32", "data_offsets": [0, 16]}}),
    "a shape that is a number": file_of({"t": entry(0, 16, 4)}),
    "a shape of texts": file_of({"t": entry(0, 16, ["4"])}),
    "a shape of fractions": file_of({"t": entry(0, 16, [4.0])}),
    "a shape with true": file_of({"t": entry(0, 4, [True])}),
    "a negative shape": file_of({"t": entry(0, 16, [-2, -2])}),
    "an enormous shape": file_of({"t": entry(0, 16, [2**62, 2**62])}),
    "a shape of 1,000 ones": file_of({"t": entry(0, 4, [1] * 500)}, 4),
    "three offsets": file_of({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 32]}}),
    "an offset beyond the file": file_of({"t": entry(2**40, 2**40 + 16)}),
    "an end before its beginning": file_of({"t": entry(16, 0)}),
    "two tensors in one place": file_of({"a": entry(0, 16), "b": entry(8, 24)}, 24),
    "a gap": file_of({"a": entry(0, 16), "b": entry(32, 48)}, 48),
    "an unknown dtype": file_of({"t": entry(0, 16, dtype="F31")}),
    "a dtype that is a list": file_of({"t": entry(0, 16, dtype=[])}),
    "a file cut in the middle": file_of({"t": entry(0, 16)}, 15),
    "bytes after the end": file_of({"t": entry(0, 16)}, 17),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_f13_a_hostile_safetensors_header_is_refused_in_one_line_and_little_memory(data: bytes, tmp_path: Path) -> None:
    assert len(data) < 2048
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as refusal:
            open_safetensors(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "model.safetensors" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert peak < 1 << 20


def test_f13_random_changes_of_a_valid_file_raise_nothing_but_model_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(3, 4), "b.c": torch.ones(5, dtype=torch.bfloat16)}, path, metadata={"format": "pt"})
    whole = path.read_bytes()
    chance = random.Random(13)
    outcomes = {"opened": 0, "refused": 0}
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3))):
            at = chance.randrange(len(whole) - 58)
            data[at : at + chance.choice((0, 1))] = chance.choice((chance.randbytes(1), b"9", b'"', b"[", b""))
        path.write_bytes(data)
        try:
            file = open_safetensors(path)
            assert all(file.read(name).values.size >= 0 for name in file.tensors)
            outcomes["opened"] += 1
        except ModelError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50, outcomes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_f14_every_float_dtype_comes_back_as_it_was_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.randn(7, 3).to(dtype)
    save_file({"a": values, "scalar": torch.tensor(2.0), "none": torch.empty(0, 4)}, tmp_path / "m.safetensors")
    file = open_safetensors(tmp_path / "m.safetensors")
    assert torch.equal(as_tensor(file.read("a")), values)
    assert as_tensor(file.read("a")).dtype == dtype
    assert torch.equal(torch.from_numpy(file.read("a").float32()), values.float())
    assert as_tensor(file.read("scalar")).item() == 2.0
    assert as_tensor(file.read("none")).shape == (0, 4)


def test_a_dtype_we_cannot_compute_in_is_refused_when_it_is_asked_for_and_not_before(tmp_path: Path) -> None:
    save_file({"codes": torch.ones(3, dtype=torch.int8), "a": torch.ones(2)}, tmp_path / "m.safetensors")
    file = open_safetensors(tmp_path / "m.safetensors")
    assert file.read("a").values.tolist() == [1, 1]
    with pytest.raises(ModelError, match="codes has the type I8"):
        file.read("codes")
