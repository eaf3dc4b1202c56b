"""Tokenizer: text to ids, a control token coming only from who may write one. Not ids to text (detokenizer.py).

Control tokens are those that the tokenizer calls special and those that the template writes (Qwen's `<think>`, say).
Two things keep text and control apart:

* `shield` replaces, in what people and models wrote, every character with which a control token begins by a private
  mark, so that whatever a template does with the text (cut it, strip it, join its parts) forms no control token;
* `encode` works on a copy of the tokenizer that takes the control tokens' literals for text and knows the tokens
  themselves by secret names only. What the template wrote gets those names, then the marks turn back into characters.

One call then encodes the whole prompt, so that spaces and merges fall as they do in the tokenizer itself.
"""
import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence

import tokenizers

from ..errors import InvalidField

_CONTROL, _CHAR, _ANSWER, _FILLER, _TEXT = range(5)  # what a mark stands for


class Marks:
    """Private stand-ins in a text: two private-use characters around a number that nobody can guess."""

    def __init__(self) -> None:
        self._nonce = str(10**15 + secrets.randbelow(9 * 10**15))  # digits: a template's `upper` does not change them
        self.any_text = re.compile(f"\ue000{self._nonce}{_TEXT}([0-9]+)\ue001")

    def make(self, kind: int, number: int = 0) -> str:
        return f"\ue000{self._nonce}{kind}{number}\ue001"

    def text(self, number: int) -> str:
        """Stands for the text of message `number` (prompt.py finds by it where a template puts what)."""
        return self.make(_TEXT, number)


class Tokenizer:
    """Immutable once made, for any thread. `answer` stands in a prompt for an answer's ids.

    size: one more than the tokenizer's highest id. `added` are its added tokens, by what they stand for; `literals` is
    what control tokens stand for, by their ids.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, chat_template: str | None, *, bos_id: int | None, size: int
    ) -> None:
        self.marks = Marks()  # these go through templates, which may quote them in an error
        secret = Marks()  # these do not, so nobody can know them
        self.answer = secret.make(_ANSWER)
        added = tokenizer.get_added_tokens_decoder()
        controls = {token: one for token, one in added.items() if _is_control(one, chat_template or "")}
        self.control_ids = frozenset(controls)
        self.literals = {token: one.content for token, one in controls.items()}
        self.added = {one.content: token for token, one in added.items()}
        self.special_ids = frozenset(token for token, one in added.items() if one.special)
        self._bos = [bos_id] if bos_id is not None and tokenizer.encode("").ids[:1] == [bos_id] else []
        self.digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()

        names = {token: secret.make(_CONTROL, token) for token in controls}
        self._copy = _copy_with_names(tokenizer, size, names, self.answer, secret.make(_FILLER))
        self._real_ids = {self._copy.token_to_id(name): token for token, name in names.items()}
        self._answer_id = self._copy.token_to_id(self.answer)
        self._spelled = {token: self._spell(one.content) for token, one in controls.items()}

        literals = {one.content: names[token] for token, one in controls.items()}
        firsts = sorted({literal.lstrip()[0] for literal in literals})
        soft = [one.content for one in controls.values() if not one.special]
        self._shields = {char: self.marks.make(_CHAR, i) for i, char in enumerate(firsts)}
        self._first = _one_of(firsts)
        self._first_not_soft = re.compile(f"(?!{_one_of(soft).pattern}){self._first.pattern}")
        characters = {mark: char for char, mark in self._shields.items()}
        self._sealed = literals | characters
        self._control = _one_of(literals)
        self._seal = re.compile(f"{_one_of(characters).pattern}|{_one_of(literals).pattern}")

    def shield(self, text: str, *, of_model: bool = False) -> str:
        """What someone wrote, fit to go through a template. Only a model's own `<think>` stays a control token."""
        pattern = self._first_not_soft if of_model else self._first
        return pattern.sub(lambda found: self._shields[found[0]], text)

    def end_of(self, text: str, prompt: str, start: int) -> int | None:
        """Where a text ends that stands there, shielded or not. None: it does not; control tokens are no text."""
        end = 0
        for found in self._first.finditer(text):
            plain, mark = text[end : found.start()], self._shields[found[0]]
            if not prompt.startswith(plain, start):
                return None
            start += len(plain)
            if prompt.startswith(mark, start):
                start += len(mark)
            elif prompt.startswith(found[0], start) and not self._control.match(prompt, start):
                start += len(found[0])
            else:
                return None
            end = found.end()
        return start + len(text) - end if prompt.startswith(text[end:], start) else None

    def encode(self, prompt: str, answers: Sequence[Sequence[int]] = ()) -> list[int]:
        """Ids of what a template wrote, shielded texts as text, the n-th `answer` being `answers[n]`. Adds no BOS."""
        sealed = self._seal.sub(lambda found: self._sealed[found[0]], prompt)
        stored = iter(answers)
        ids: list[int] = []
        for token in self._copy.encode(sealed, add_special_tokens=False).ids:
            if token in self._real_ids:
                ids.append(self._real_ids[token])
            elif token == self._answer_id:
                ids.extend(next(stored))
            elif token in self._spelled:  # the vocabulary has the literal as an ordinary piece (Unigram, ignore_merges)
                ids.extend(self._spelled[token])
            else:
                ids.append(token)
        return ids

    def encode_text(self, text: str) -> list[int]:
        """A raw completion: all is its author's, control tokens too. One BOS if the tokenizer adds one, never two."""
        ids = self.encode(require_text("prompt", text))
        return ids if ids[: len(self._bos)] == self._bos else self._bos + ids

    def _spell(self, literal: str) -> list[int]:
        """The literal in ordinary ids, character by character."""
        ids: list[int] = []
        for char in literal:
            token = self._copy.token_to_id(char)
            ids.extend(self._copy.encode(char, add_special_tokens=False).ids if token is None else [token])
        return [token for token in ids if token not in self.control_ids]


def require_text(name: str, text: str) -> str:
    """Refuses what is no Unicode text: an unpaired surrogate. Everything else is left as it is, joiners above all."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidField(name, f"an unpaired surrogate at character {error.start}") from None
    return text


def _is_control(added: tokenizers.AddedToken, chat_template: str) -> bool:
    """Whether it means more than its characters. Words and white space that were added to a vocabulary do not."""
    literal = added.content.strip()
    return bool(literal) and (added.special or (literal in chat_template and not literal.isalnum()))


def _one_of(literals: Iterable[str]) -> re.Pattern[str]:
    """The longest of the literals that stands here, as the tokenizer itself would match; of none, nothing matches."""
    return re.compile("(?:" + ("|".join(map(re.escape, sorted(literals, key=len, reverse=True))) or "(?!)") + ")")


def _copy_with_names(
    tokenizer: tokenizers.Tokenizer, size: int, names: dict[int, str], answer: str, filler: str
) -> tokenizers.Tokenizer:
    """The tokenizer once more, cut at control tokens by secret name only, each as greedy for spaces as the original.

    It shares the original's vocabulary and merges, which nothing here changes. Neither truncates nor pads.
    """
    copy = tokenizers.Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (of_original := getattr(tokenizer, part)) is not None:
            setattr(copy, part, of_original)
    copy.encode_special_tokens = True  # literals of special tokens are text; a shared flag, hence the copy
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    copy.add_tokens([_added(one.content, one, special=one.special or token in names) for token, one in added])
    copy.add_tokens([tokenizers.AddedToken(filler, normalized=False)])
    # New ids go on from the number of pieces. In a vocabulary with holes those are old ones, to be stepped over.
    reached = copy.token_to_id(filler)
    assert reached is not None
    holes = range(size - 1 - reached)
    copy.add_tokens([tokenizers.AddedToken(f"{filler}{hole}", normalized=False) for hole in holes])
    copy.add_tokens([tokenizers.AddedToken(answer, normalized=False)])
    one_of = dict(added)
    copy.add_tokens([
        tokenizers.AddedToken(name, normalized=False, lstrip=one_of[t].lstrip, rstrip=one_of[t].rstrip)
        for t, name in names.items()
    ])
    return copy


def _added(content: str, like: tokenizers.AddedToken, *, special: bool) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        content, single_word=like.single_word, lstrip=like.lstrip, rstrip=like.rstrip, normalized=like.normalized,
        special=special,
    )
