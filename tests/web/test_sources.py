"""The sources of the pages: their own checks pass, one file makes HTML, and there are words for all that is said."""
import json
import re
from pathlib import Path

import pytest
from node import WEB, npm

SOURCES = sorted((WEB / "src").glob("*.ts*"))
TEMPLATES = sorted((WEB / "templates").glob("*.html"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in [*SOURCES, *TEMPLATES]}
WORDS: dict[str, str] = json.loads((WEB / "locales/en.json").read_text(encoding="utf-8"))


def test_the_scripts_pass_their_tests() -> None:
    npm("test", "--silent")


def test_the_scripts_pass_the_type_checker() -> None:
    npm("run", "--silent", "check")


def test_only_the_markdown_renderer_makes_html() -> None:
    banned = re.compile(r"(inn|Inn|out)erHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment")
    assert [name for name, text in TEXTS.items() if banned.search(text)] == []
    assert [name for name, text in TEXTS.items() if "dompurify" in text] == ["markdown.ts"]


def test_templates_have_no_inline_script_or_style() -> None:
    inline = re.compile(r"<script(?![^>]*(src=|application/json))|<style|\sstyle=|\son\w+=|\|\s*safe")
    assert [path.name for path in TEMPLATES if inline.search(TEXTS[path.name])] == []


def test_a_file_is_one_noun_and_says_so() -> None:
    for path in SOURCES:
        text = TEXTS[path.name]
        assert text.startswith("// "), path.name
        assert text.count("\n") < 350, path.name


def test_there_are_words_for_everything_that_is_said_and_no_others() -> None:
    said = set()
    for text in TEXTS.values():
        said |= set(re.findall(r'"([a-zA-Z]+\.[a-zA-Z]+)"', text)) & set(WORDS)
        said |= set(re.findall(r'\bt\(\s*"([\w.]+)"', text))
        for prefix in re.findall(r"`(\w+\.)\$\{", text):
            said |= {key for key in WORDS if key.startswith(prefix)}
    server = "".join(path.read_text(encoding="utf-8") for path in (WEB.parent / "server").glob("*.py"))
    said |= set(re.findall(r'"([a-zA-Z]+\.[a-zA-Z]+)"', server)) & set(WORDS)
    assert said - set(WORDS) == set()
    assert set(WORDS) - said == set()


@pytest.mark.parametrize("path", sorted((WEB / "locales").glob("*.json")), ids=lambda path: path.stem)
def test_a_locale_has_the_keys_and_the_places_of_the_english_one(path: Path) -> None:
    words = json.loads(path.read_text(encoding="utf-8"))
    places = re.compile(r"\{(\w+)\}")
    assert set(words) <= set(WORDS)
    for key, text in words.items():
        assert sorted(places.findall(text)) == sorted(places.findall(WORDS[key])), key


def test_the_lock_file_says_no_download_address() -> None:
    assert '"resolved"' not in (WEB / "package-lock.json").read_text(encoding="utf-8")
