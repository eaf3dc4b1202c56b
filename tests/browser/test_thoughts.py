"""Thoughts are folded away above the answer, and are text there, on the side that they are read from."""
from collections.abc import Iterator

import pytest
from browser.running import Site
from browser.talk import answers, ask, last_answer
from playwright.sync_api import Page, expect
from scripted import CHATML

from hamdam.engine.text.codec import Codec

pytestmark = pytest.mark.browser


@pytest.fixture
def thinking(site: Site) -> Iterator[None]:
    """The site's model thinks."""
    codec, runner = site.engine.codec, site.runner
    site.engine.codec = Codec(runner.tokenizer, "{# <think> </think> #}" + CHATML, eos_ids=runner.eos_ids)
    yield
    site.engine.codec = codec


@pytest.mark.usefixtures("thinking")
def test_thoughts_are_folded_away_above_the_answer_and_are_no_markup(page: Page) -> None:
    ask(page, "say <think>\nمی‌اندیشم که **این** پرسش <b>ساده</b> است.\n</think>\n\nسلام! کتاب‌ها **اینجا** هستند.")
    expect(last_answer(page)).to_have_text("سلام! کتاب‌ها اینجا هستند.")
    folded = answers(page).last.locator("details")
    thought = folded.locator("p")
    expect(thought).to_be_hidden()
    folded.locator("summary").click()
    expect(thought).to_be_visible()
    expect(thought).to_have_text("می‌اندیشم که **این** پرسش <b>ساده</b> است.")
    expect(thought).to_have_attribute("dir", "rtl")
    assert folded.evaluate("node => node.compareDocumentPosition(node.parentElement.querySelector('.prose'))") == 4
    page.reload()
    expect(answers(page).last.locator("details p")).to_be_hidden()
    expect(last_answer(page)).to_have_text("سلام! کتاب‌ها اینجا هستند.")
    expect(page.locator("details p")).to_contain_text("می‌اندیشم")


def test_an_answer_without_thoughts_has_nothing_folded(page: Page) -> None:
    ask(page, "say just this")
    expect(answers(page).last.locator("details")).to_have_count(0)
