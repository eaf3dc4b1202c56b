"""Locales: the words of the interface in each language of web/locales, and which of them a browser prefers."""
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .assets import WEB

DEFAULT = "en"
MAX_ASKED = 20  # languages of one Accept-Language header that are looked at


@dataclass(frozen=True, slots=True)
class Locale:
    language: str
    words: Mapping[str, str]

    def __call__(self, key: str, **values: object) -> str:
        """The text called `key` with its `{name}` replaced. There is none without a text: a test holds it."""
        text = self.words[key]
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text


class Locales:
    """English is complete; where another language lacks a text, it has the English one."""

    def __init__(self, folder: Path = WEB / "locales") -> None:
        read = {path.stem: _words(path) for path in sorted(folder.glob("*.json"))}
        self._locales = {language: Locale(language, read[DEFAULT] | words) for language, words in read.items()}

    def preferred(self, accept_language: str) -> Locale:
        """By Accept-Language (RFC 9110, 12.5.4); a region falls back to its language."""
        asked = []
        for part in accept_language.split(",")[:MAX_ASKED]:
            tag, _, weight = part.partition(";q=")
            try:
                asked.append((-float(weight or 1), tag.strip().lower().split("-")[0]))
            except ValueError:
                continue
        for _, language in sorted(asked, key=lambda one: one[0]):
            if language in self._locales:
                return self._locales[language]
        return self._locales[DEFAULT]


def _words(path: Path) -> dict[str, str]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
