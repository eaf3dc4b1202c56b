"""The header of a GGUF file: what it gives, and that a hostile one is refused in one line and little memory."""
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
import tiny_models

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.gguf import read_header

UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0, num_dims: int | None = None) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def gguf_bytes(keys: list[bytes], tensors: list[bytes], data: int = 0, *, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


def nested_arrays(depth: int) -> bytes:
    return key("deep", ARRAY, struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", UINT8, 0))


HOSTILE = {
    "a string of 2**63 bytes": gguf_bytes([struct.pack("<Q", 2**63)], []),
    "a value of 2**63 bytes": gguf_bytes([key("general.name", STRING, struct.pack("<Q", 2**63))], []),
    "arrays nested 1,000 deep": gguf_bytes([nested_arrays(100)], []),
    "an array of 2**61 numbers": gguf_bytes([key("many", ARRAY, struct.pack("<IQ", UINT32, 2**61))], []),
    "an array of 2**63 strings": gguf_bytes([key("many", ARRAY, struct.pack("<IQ", STRING, 2**63))], []),
    "many strings in few bytes": gguf_bytes([key("many", ARRAY, struct.pack("<IQ", STRING, 4_000_000))], [], 999),
    "2**32 - 1 dimensions": gguf_bytes([], [tensor("t", [4], num_dims=0xFFFFFFFF)], 99),
    "no dimensions": gguf_bytes([], [tensor("t", [], num_dims=0)], 99),
    "a product beyond 64 bits": gguf_bytes([], [tensor("t", [2**64 - 1, 2, 1, 1])], 99),
    "a product that is 0 in 64 bits": gguf_bytes([], [tensor("t", [2**32, 2**32])], 99),
    "an empty dimension": gguf_bytes([], [tensor("t", [0, 4])], 99),
    "alignment 0": gguf_bytes([key("general.alignment", UINT32, struct.pack("<I", 0))], []),
    "alignment 2**30": gguf_bytes([key("general.alignment", UINT32, struct.pack("<I", 2**30))], []),
    "alignment 48": gguf_bytes([key("general.alignment", UINT32, struct.pack("<I", 48))], []),
    "alignment as text": gguf_bytes([key("general.alignment", STRING, text("32"))], []),
    "an offset beyond the file": gguf_bytes([], [tensor("t", [4], offset=2**62)], 99),
    "an offset that wraps round": gguf_bytes([], [tensor("t", [4], offset=2**64 - 32)], 99),
    "an offset off the grid": gguf_bytes([], [tensor("t", [4], offset=4)], 99),
    "two tensors in one place": gguf_bytes([], [tensor("a", [16]), tensor("b", [16], offset=32)], 128),
    "type 999": gguf_bytes([], [tensor("t", [4], kind=999)], 99),
    "a row that is no whole block": gguf_bytes([], [tensor("t", [40], kind=2)], 99),
    "a value of type 77": gguf_bytes([key("odd", 77, b"\0")], []),
    "one tensor twice": gguf_bytes([], [tensor("t", [4]), tensor("t", [4], offset=32)], 99),
    "one key twice": gguf_bytes([key("a", UINT8, b"\1"), key("a", UINT8, b"\2")], []),
    "a name that is no UTF-8": gguf_bytes([struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", UINT8, 1)], []),
    "2**64 - 1 tensors": b"GGUF" + struct.pack("<IQQ", 3, 2**64 - 1, 0) + bytes(64),
    "2**64 - 1 keys": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1) + bytes(64),
    "the other byte order": b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64),
    "version 1": gguf_bytes([], [], version=1),
    "another kind of file": b"PK\3\4" + bytes(60),
    "an empty file": b"",
    "twenty bytes": b"GGUF" + bytes(16),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_f13_a_hostile_gguf_header_is_refused_in_one_line_and_little_memory(data: bytes, tmp_path: Path) -> None:
    assert len(data) < 2048
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as refusal:
            open_checkpoint(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "model.gguf" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300
    assert peak < 1 << 20


def test_f13_a_valid_header_gives_values_and_places(tmp_path: Path) -> None:
    keys = [key("general.name", STRING, text("tiny")), key("n", ARRAY, struct.pack("<IQ3B", UINT8, 3, 1, 2, 3))]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(keys, [tensor("a", [4, 2]), tensor("b", [32], kind=2, offset=32)], 64))
    header = read_header(path)
    assert header.values == {"general.name": "tiny", "n": [1, 2, 3]}
    a, b = header.tensors["a"], header.tensors["b"]
    assert (a.shape, a.nbytes, b.shape, b.nbytes, b.offset - a.offset) == ((2, 4), 32, (32,), 18, 32)
    assert a.offset % 32 == 0


def list_of(strings: list[bytes]) -> bytes:
    packed = b"".join(struct.pack("<Q", len(one)) + one for one in strings)
    return key("many", ARRAY, struct.pack("<IQ", STRING, len(strings)) + packed)


ODD = [b"", b"\0", b"a\0b", bytes(9), b"\5" + bytes(7), b"\0\0\0\0\0\0\0x", b"x" * 256]
ODD += ["گ".encode() * 140, b"y" * 70_000]


@pytest.mark.parametrize("odd", [[], [ODD[0]], ODD[1:3], ODD], ids=["none", "empty", "zeros", "all"])
def test_long_lists_of_strings_are_read_whatever_strings_are_among_them(odd: list[bytes], tmp_path: Path) -> None:
    """Short ones are read many at once. Odd ones come one by one, in runs, at the beginning and at the end."""
    chance = random.Random(5)
    words = [word.encode() for word in ("a", "Ġthe", "گفت", "x" * 255, " 🦙")]
    strings = [*odd, *(chance.choice(words) for _ in range(5000))]
    for one in odd * 40:
        strings.insert(chance.randrange(len(strings)), one)
    strings += odd
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([list_of(strings), key("after", UINT8, b"\7")], []))
    header = read_header(path)
    assert header.values == {"many": [one.decode() for one in strings], "after": 7}


@pytest.mark.parametrize("place", [0, 100, 143, 144, 200, 256, 399])
def test_the_list_ends_where_it_ends_also_with_a_long_string_near_its_end(place: int, tmp_path: Path) -> None:
    strings = [b"short"] * 400
    strings[place] = b"long" * 100
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([list_of(strings), key("after", UINT8, b"\7")], []))
    assert read_header(path).values == {"many": [one.decode() for one in strings], "after": 7}


def test_f13_a_long_list_with_one_string_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([list_of([b"word"] * 1000 + ["گ".encode()[:1], "گ".encode()[1:]])], []))
    with pytest.raises(ModelError, match="not UTF-8"):
        read_header(path)


@pytest.mark.parametrize(("kind", "value"), [(UINT8, b"\7"), (ARRAY, struct.pack("<IQ4B", UINT8, 4, 1, 2, 3, 4))])
def test_f13_a_value_of_a_narrower_type_than_is_read_is_refused(kind: int, value: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([key("tokenizer.ggml.scores", kind, value)], []))
    header = read_header(path)
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.scores is not a list of float"):
        header.need_list("tokenizer.ggml.scores", float)
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.scores is not a str"):
        header.need("tokenizer.ggml.scores", str)


def test_f13_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = tiny_models.write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 400, 7), *range(400, len(whole), 1999), len(whole) - 40]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            open_checkpoint(path)


def test_f13_random_changes_of_a_valid_file_raise_nothing_but_model_error(tmp_path: Path) -> None:
    whole = tiny_models.write_gguf(tmp_path / "whole.gguf").read_bytes()
    header_length = read_header(tmp_path / "whole.gguf").tensors["token_embd.weight"].offset
    path = tmp_path / "changed.gguf"
    chance = random.Random(13)
    outcomes = {"opened": 0, "refused": 0}
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at, length = chance.randrange(header_length), chance.choice((1, 1, 1, 4, 8))
            put = chance.choice((chance.randbytes(length), bytes(length), b"\xff" * length))
            data[at : at + chance.choice((length, length, length, 0))] = put  # at times it only pushes the rest away
        path.write_bytes(data)
        try:
            for _, values in open_checkpoint(path).tensors():
                assert values.numel()
            outcomes["opened"] += 1
        except ModelError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50, outcomes
