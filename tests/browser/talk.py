"""What one does on the chat page and where one looks: words for the browser tests. No assertions of their own."""
import re

from playwright.sync_api import Locator, Page, expect

ID = re.compile(r"/c/conv_[\w-]+$")


def composer(page: Page) -> Locator:
    return page.get_by_label("Your message", exact=True).and_(page.locator("textarea"))


def ask(page: Page, text: str, *, wait: bool = True) -> None:
    """Writes and sends; with `wait` until the answer is there."""
    before = answers(page).count()
    composer(page).fill(text)
    composer(page).press("Enter")
    if wait:
        expect(answers(page)).to_have_count(before + 1)
        finished(page)


def finished(page: Page) -> None:
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".answer[aria-busy=true]")).to_have_count(0)


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def questions(page: Page) -> Locator:
    return page.locator(".question")


def last_answer(page: Page) -> Locator:
    return answers(page).last.locator(".prose")


def conversations(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Conversations").get_by_role("link")


def choose(page: Page, title: str, what: str) -> None:
    """An entry of a conversation's menu."""
    row = page.locator(".row", has_text=title)
    row.hover()
    row.get_by_role("button", name=f"Options for {title}").click()
    page.get_by_role("button", name=what, exact=True).click()
