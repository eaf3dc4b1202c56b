"""Markup: HTML and SVG that cannot be broken into, because only `element` makes it and it escapes all plain text."""
from collections.abc import Iterable
from html import escape

VOID = frozenset({"meta", "line", "rect", "circle", "polyline", "path"})  # nothing stands inside


class Markup(str):
    """Text that is markup already. Any other str is not, whatever it holds."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: object) -> Markup:
    """`class_` is `class`, `font_size` is `font-size`; an attribute that is None is left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items() if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{joined(content)}</{name}>")


def joined(content: Iterable[str]) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))
