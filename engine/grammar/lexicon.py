"""Lexicon: what every id of a vocabulary says, as llguidance wants to know it, and masks of many grammars at once.

Masks are as wide as the logits. Ids that say nothing (special ones, and those with which a model pads its vocabulary)
are in none of them. Ends of an answer are not its business: whether a grammar may end is said apart.
"""
import os
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
MOST_THREADS = 32  # that compute masks: half a millisecond of one for each answer
_STRING = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [_STRING + "{1,30}", _STRING + "+"]  # ids that are allowed together, mostly; more of them make no mask faster
_SPECIAL = 0xFF  # the byte by which llguidance knows a special token; it is in no text


class Lexicon:
    """Making one takes about 2 µs an id, with Python's lock held: made once, before there is anybody to wait."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        """texts: the bytes of each id; none where it says nothing."""
        import llguidance

        self.size, self.texts = len(texts), texts
        said = [text if text[:1] != bytes([_SPECIAL]) else b"" for text in texts]
        self._spoken = _bits(map(bool, said), self.size)
        self.blank = _bits(map(bytes.isspace, said), self.size)  # ids that say white space, and nothing else
        self.tokenizer: Any = llguidance.LLTokenizer(
            cast(Any, _Texts([*said, bytes([_SPECIAL]) + b"end"])), slices=_SLICES
        )
        self._executor: Any = llguidance.LLExecutor(min(os.cpu_count() or 1, MOST_THREADS))

    def masks(self, matchers: Sequence[Any]) -> tuple[Words, list[bool]]:
        """[matchers, ids / 32 and a little]: bit i of word w says whether id 32 w + i may be next; and which of the
        grammars may end here. Of a matcher that has an error neither means anything."""
        words = np.zeros((len(matchers), len(self._spoken)), np.uint32)
        numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(numbered, words.ctypes.data, words.strides[0], len(words))
        words &= self._spoken
        return words, [bool(matcher.is_accepting()) for matcher in matchers]

    def spell(self, text: str) -> list[int]:
        """Ids that say it, not as the tokenizer would choose them."""
        ids: list[int] = self.tokenizer.greedy_tokenize(text)
        return ids


def _bits(given: Iterable[bool], size: int) -> Words:
    """As a mask has them; with one bit more, for llguidance's own end token."""
    bits = np.zeros((size // 32 + 1) * 32, np.uint8)
    bits[:size] = list(given)
    return np.packbits(bits, bitorder="little").view(np.uint32)


class _Texts:
    """A tokenizer as llguidance asks for one. It never spells: no grammar of ours forces a spelling."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens, self.eos_token_id = tokens, len(tokens) - 1

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("spelling is left to the model")
