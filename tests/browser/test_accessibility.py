"""WCAG 2.2 AA as far as a machine can tell: axe-core on every page, in both themes, and the ways of the keyboard."""
from collections.abc import Callable
from pathlib import Path

import pytest
from browser.running import Site
from browser.talk import ask, finished, last_answer
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = pytest.mark.browser

AXE = Path(__file__).resolve().parents[2] / "web/node_modules/axe-core/axe.min.js"
RULES = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']"
ANSWER = """# Title

Text with [a link](https://example.org), `code` and **weight**.

- one
- two

> quote

```python
def f():  # comment
    return "x" + 1
```

| a | b |
|---|--:|
| 1 | 2 |
"""


def violations(page: Page) -> list[str]:
    page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")  # through the debugger: the page's policy lets no script in
    found = page.evaluate(f"axe.run(document, {{runOnly: {RULES}}})")["violations"]
    nodes = [(one["id"], node) for one in found for node in one["nodes"]]
    return [f"{rule}: {node['html'][:200]} {node['failureSummary'][:300]}" for rule, node in nodes]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_doors_have_no_violations(site: Site, open_context: Callable[..., BrowserContext], scheme: str) -> None:
    context = open_context(color_scheme=scheme)
    context.watched.refusals = 1  # type: ignore[attr-defined]
    page = context.new_page()
    for path in ("/sign-in", "/set-up?token=none"):
        page.goto(path)
        assert violations(page) == []


def test_the_set_up_has_no_violations(new_site: Site, open_context: Callable[..., BrowserContext]) -> None:
    page = open_context(new_site.address).new_page()
    page.goto(f"/set-up?token={new_site.call(new_site.house.set_up.renew)}")
    expect(page.get_by_label("Password")).to_be_visible()
    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chat_has_no_violations(sign_in: Callable[..., Page], scheme: str) -> None:
    page = sign_in(color_scheme=scheme)
    assert violations(page) == []
    ask(page, f"say {ANSWER}")
    expect(last_answer(page).locator(".hljs-keyword").first).to_be_visible()
    ask(page, "say سلام دنیا")
    page.get_by_role("button", name="Try again").last.click()
    finished(page)
    assert violations(page) == []
    page.locator(".account-button").click()
    assert violations(page) == []


def test_the_chat_on_a_phone_has_no_violations(sign_in: Callable[..., Page]) -> None:
    page = sign_in(viewport={"width": 390, "height": 844})
    ask(page, f"say {ANSWER}")
    assert violations(page) == []
    page.get_by_role("button", name="Open the list").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    assert violations(page) == []


def test_an_answer_is_spoken_in_sentences_and_its_end_is_told(page: Page) -> None:
    ask(page, "say First sentence. Second sentence.")
    expect(page.locator("[aria-live=polite]").last).to_contain_text("The answer is ready.")
    assert page.get_by_role("log").get_attribute("aria-live") == "off"


def test_everything_can_be_reached_by_keyboard(page: Page) -> None:
    ask(page, "say hello")
    page.keyboard.press("Escape")
    page.locator("body").press("Tab")
    page.evaluate("document.activeElement.blur()")
    names = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        names.add(page.evaluate("(e => e.getAttribute('aria-label') || e.textContent)(document.activeElement)"))
    listed = {"Skip to the conversation", "New chat", "say hello", "Options for say hello"}
    assert listed | {"Copy", "Edit", "Try again", "Your message"} <= names
