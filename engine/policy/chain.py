"""The hash chain of a prefix: one link a full block, naming it and all before it. It knows no block and no holder."""
from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from ..config import BLOCK_SIZE

_IDS = struct.Struct(f"<{BLOCK_SIZE}q")


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """`ids` of one full block, after `parent`, within `root` (KV fingerprint, cache root); `key` names all of it."""

    key: bytes
    parent: Link | None
    ids: tuple[int, ...]
    root: tuple[str, str]


def extend(links: list[Link], ids: list[int], root: tuple[str, str]) -> None:
    """Appends the links of the blocks that `ids` fill beyond `links`."""
    for start in range(len(links) * BLOCK_SIZE, len(ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent, block = links[-1] if links else None, tuple(ids[start : start + BLOCK_SIZE])
        links.append(Link(key_of(root, parent.key if parent else b"", block), parent, block, root))


def key_of(root: tuple[str, str], parent: bytes, ids: tuple[int, ...]) -> bytes:
    """Each field has its name and its length before it, so no two lists of fields are the same bytes."""
    fingerprint, cache_root = (text.encode() for text in root)
    fields = ((b"kv", fingerprint), (b"root", cache_root), (b"parent", parent), (b"ids", _IDS.pack(*ids)))
    return digest(b"".join(name + len(value).to_bytes(8, "little") + value for name, value in fields))


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def same(one: Link | None, other: Link | None) -> bool:
    """Whether two links stand for the same ids after the same ids in the same root, whatever their keys say."""
    while one is not other:
        if one is None or other is None or one.ids != other.ids or one.root != other.root:
            return False
        one, other = one.parent, other.parent
    return True


def common_prefix(one: list[int], other: list[int]) -> int:
    """How many ids at the beginning agree. Compares slices: a long conversation is not walked in Python."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
