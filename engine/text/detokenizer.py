"""Detokenizer: ids to text, one at a time, never half a character. It knows no stop strings and no templates.

Every id stands for fixed bytes, whatever its neighbours; they are looked up in a table made once and put through an
incremental UTF-8 decoder. Decoding windows of ids again and again, as is common, has to guess from U+FFFD.
"""
import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import tokenizers

from ..errors import ModelError

NOTHING: Mapping[int, bytes] = MappingProxyType({})
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-ins of GPT-2's byte-level pieces: printable Latin-1 is itself, the rest goes to U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


class TokenBytes:
    """The bytes of every id under the tokenizer's decoder, special ids being silent. Immutable once made.

    `strip` leading spaces of a whole text are no part of it (SentencePiece writes one before the first word).
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, vocabulary: Mapping[str, int], silent: frozenset[int]) -> None:
        self.size = max(vocabulary.values(), default=-1) + 1
        self.strip = 0
        self._bytes = [b""] * self.size
        data = _bytes_of(list(vocabulary), self._steps(tokenizer))
        self.longest = max(map(len, data), default=0) or 1  # special tokens' too: a raw prompt may have their literal
        for token, its in zip(vocabulary.values(), data, strict=True):
            self._bytes[token] = its
        for token in silent:
            if 0 <= token < self.size:
                self._bytes[token] = b""

    def _steps(self, tokenizer: tokenizers.Tokenizer) -> list[dict[str, Any]]:
        """The decoder's steps that act on one piece; those that act on the whole text become `strip`."""
        if tokenizer.decoder is None:  # pieces are words, with a space between
            self.strip = 1
            return [{"type": "Words"}]
        decoder = json.loads(tokenizer.decoder.__getstate__())
        kept: list[dict[str, Any]] = []
        fused = False
        for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
            kind = step["type"]
            if kind == "Metaspace":
                self.strip = int(step.get("prepend_scheme", "always") != "never")
                kept.append({"type": "Replace", "pattern": {"String": step["replacement"]}, "content": " "})
            elif kind == "Strip" and fused and step["content"] == " " and step["stop"] == 0:
                self.strip = step["start"]
            elif kind in ("ByteLevel", "ByteFallback") or (kind == "Replace" and "String" in step["pattern"]):
                kept.append(step)
            elif kind != "Fuse":
                raise ModelError(f"the tokenizer's decoder step {kind} is not supported")
            fused = fused or kind == "Fuse"
        return kept

    def __getitem__(self, token: int) -> bytes:
        return self._bytes[token] if 0 <= token < self.size else b""

    def decode(self, ids: Iterable[int], *, going_on: bool = False) -> str:
        """A whole text at once, the same as streamed. `going_on`: after other text, where a leading space is one."""
        data = b"".join(map(self.__getitem__, ids))
        return data[0 if going_on else _leading_spaces(data, self.strip) :].decode("utf-8", "replace")


def _bytes_of(pieces: list[str], steps: list[dict[str, Any]]) -> list[bytes]:
    """Where bytes have an alphabet all pieces are looked up at once: start-up waits for it."""
    alphabet = _byte_level_alphabet()
    if [step["type"] for step in steps] != ["ByteLevel"]:
        return [_piece_bytes(piece, steps, alphabet) for piece in pieces]
    strange = max(map(ord, alphabet)) + 1
    table = np.full(strange + 1, -1, np.int16)
    for char, byte in alphabet.items():
        table[ord(char)] = byte
    letters = np.frombuffer("".join(pieces).encode("utf-32-le"), np.uint32)
    found = table[np.minimum(letters, strange)]
    ends = list(accumulate(map(len, pieces)))
    text = found.astype(np.uint8).tobytes()
    data = [text[start:end] for start, end in pairwise([0, *ends])]
    for number in set(np.searchsorted(ends, np.flatnonzero(found < 0), side="right").tolist()):
        data[number] = _piece_bytes(pieces[number], steps, alphabet)
    return data


def _piece_bytes(piece: str, steps: list[dict[str, Any]], alphabet: dict[str, int]) -> bytes:
    for step in steps:
        kind = step["type"]
        if kind == "Words":
            piece = " " + piece
        elif kind == "Replace":
            piece = piece.replace(step["pattern"]["String"], step["content"])
        elif kind == "ByteFallback" and (byte := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        elif kind == "ByteLevel" and all(char in alphabet for char in piece):
            return bytes(alphabet[char] for char in piece)
    return piece.encode("utf-8")


def _leading_spaces(data: bytes, most: int) -> int:
    return next((i for i in range(min(most, len(data))) if data[i] != 0x20), min(most, len(data)))


class Detokenizer:
    """`push` gives text that is final: joined with `flush` it is what decoding all ids at once gives.

    Bytes that are not UTF-8 become U+FFFD as soon as that is proven, or in `flush`. `prompt_ids` are the ids that the
    text goes on from: after them a leading space is a space, and half a character at their end is completed.
    """

    def __init__(
        self,
        table: TokenBytes,
        prompt_ids: Sequence[int] = (),
        spoken: Mapping[int, bytes] = NOTHING,
        letters: Mapping[int, bytes] = NOTHING,
    ) -> None:
        """`spoken`: ids that are silent elsewhere and have these bytes here, for whoever looks for them in the text.
        `letters`: the same, but what they are heard as is no part of any text."""
        self._table, self._spoken, self._letters = table, {**spoken, **letters}, letters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = table.strip
        self.data = b""  # what the last id added to the text
        tail = b""
        for token in reversed(prompt_ids):
            tail = table[token] + tail
            if len(tail) > 3:  # a character has at most four bytes
                break
        if tail:
            self._strip = 0
            self._decoder.decode(tail)

    def push(self, token: int) -> str:
        data = self._spoken.get(token) or self._table[token]
        if self._strip and data:
            spaces = _leading_spaces(data, self._strip)
            data = data[spaces:]
            self._strip = 0 if data else self._strip - spaces
        self.data = b"" if token in self._letters else data
        return self._decoder.decode(data)

    @property
    def half(self) -> bytes:
        """The beginning of a character that is not whole yet."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
