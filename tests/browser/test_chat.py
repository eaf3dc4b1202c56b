"""Talking, on the page as people use it: asking, streaming, stopping, trying again, branching, also in two tabs."""
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from browser.running import Site
from browser.talk import ID, answers, ask, choose, composer, conversations, finished, last_answer, questions
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = pytest.mark.browser

COUNT = " ".join(str(i) for i in range(1, 61))


def test_the_question_is_there_at_once_and_the_answer_streams(site: Site, page: Page) -> None:
    site.hold()
    ask(page, "count 60", wait=False)
    expect(questions(page)).to_contain_text("count 60")
    expect(page.get_by_text("Thinking")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    site.let(1 + 20)
    expect(last_answer(page)).to_have_text(re.compile(r"^1 2 3 4 5 6 7 8 9"))
    assert last_answer(page).inner_text() in COUNT
    site.let_run()
    finished(page)
    expect(last_answer(page)).to_have_text(COUNT)
    expect(page).to_have_url(ID)
    expect(conversations(page).first).to_have_text("count 60")
    expect(answers(page).locator(".stats")).to_have_text(re.compile(r"tok/s · .* s to first word"))


def test_the_second_question_tells_how_much_came_from_the_cache(page: Page) -> None:
    ask(page, "say A first answer that is long enough to fill some blocks.")
    ask(page, "say And a second.")
    expect(answers(page).last.locator(".stats")).to_contain_text("from cache")


def test_g04_a_reload_in_the_middle_shows_the_answer_from_its_start_and_goes_on(site: Site, page: Page) -> None:
    site.hold()
    ask(page, "count 60", wait=False)
    site.let(1 + 50)
    expect(last_answer(page)).to_contain_text("15 16")
    page.reload()
    expect(last_answer(page)).to_contain_text("15 16")
    assert COUNT.startswith(last_answer(page).inner_text())
    site.let(30)
    expect(last_answer(page)).to_contain_text("24 25")
    site.let_run()
    finished(page)
    expect(last_answer(page)).to_have_text(COUNT)


def test_g04_another_chat_and_back_in_the_middle_loses_nothing(site: Site, page: Page) -> None:
    ask(page, "say elsewhere")
    page.get_by_role("button", name="New chat").first.click()
    site.hold()
    ask(page, "count 60", wait=False)
    site.let(1 + 50)
    expect(last_answer(page)).to_contain_text("15 16")
    conversations(page).filter(has_text="elsewhere").click()
    expect(last_answer(page)).to_have_text("elsewhere")
    site.let(20)
    page.go_back()
    expect(last_answer(page)).to_contain_text("21 22")
    site.let_run()
    finished(page)
    expect(last_answer(page)).to_have_text(COUNT)


def test_g04_a_second_tab_shows_the_same_answer_and_both_go_on(site: Site, page: Page) -> None:
    site.hold()
    ask(page, "count 60", wait=False)
    site.let(1 + 50)
    expect(last_answer(page)).to_contain_text("15 16")
    second = page.context.new_page()
    second.goto(page.url)
    expect(last_answer(second)).to_contain_text("15 16")
    site.let_run()
    for tab in (page, second):
        finished(tab)
        expect(last_answer(tab)).to_have_text(COUNT)
    ask(second, "say from the second")
    expect(last_answer(page)).to_have_text("from the second")


def test_g04_a_tab_left_open_over_a_restart_shows_what_was_saved_and_goes_on(
    tmp_path: Path, open_context: Callable[..., BrowserContext]
) -> None:
    with Site(tmp_path) as before:
        page = before.enter(open_context(before.address))
        before.hold()
        ask(page, "count 60", wait=False)
        before.let(1 + 50)
        expect(last_answer(page)).to_contain_text("15 16")
        before.call(before.house.turns.close)
    with Site(tmp_path, before.port):
        expect(page.get_by_text("The server was restarted")).to_be_visible()
        assert COUNT.startswith(last_answer(page).inner_text())
        page.get_by_role("button", name="Continue").click()
        finished(page)
        expect(last_answer(page)).to_have_text(COUNT)
        ask(page, "say and on")
        expect(last_answer(page)).to_have_text("and on")
        expect(questions(page)).to_have_count(2)


def test_a_tab_that_closes_ends_nothing(site: Site, page: Page) -> None:
    site.hold()
    ask(page, "count 60", wait=False)
    site.let(1 + 20)
    expect(page).to_have_url(ID)
    address, context = page.url, page.context
    page.close()
    site.let_run()
    later = context.new_page()
    later.goto(address)
    expect(last_answer(later)).to_have_text(COUNT)


def test_stop_ends_the_answer_and_what_is_there_can_go_on(site: Site, page: Page) -> None:
    site.hold()
    ask(page, "count 60", wait=False)
    site.let(1 + 50)
    expect(last_answer(page)).to_contain_text("15 16")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("You stopped this answer.")).to_be_visible()
    site.let_run()
    kept = last_answer(page).inner_text()
    assert COUNT.startswith(kept)
    assert kept != COUNT
    page.get_by_role("button", name="Continue").click()
    finished(page)
    expect(last_answer(page)).to_have_text(COUNT)
    page.reload()
    expect(last_answer(page)).to_have_text(COUNT)


def test_escape_stops_too(site: Site, page: Page) -> None:
    site.hold()
    ask(page, "count 60", wait=False)
    site.let(1 + 20)
    expect(last_answer(page)).to_contain_text("5 6")
    page.keyboard.press("Escape")
    expect(page.get_by_text("You stopped this answer.")).to_be_visible()
    site.let_run()


def test_trying_again_gives_a_second_answer_beside_the_first(page: Page) -> None:
    ask(page, "say the same")
    page.get_by_role("button", name="Try again").click()
    expect(answers(page).locator(".branches")).to_have_text("2/2")
    finished(page)
    expect(answers(page)).to_have_count(1)
    page.get_by_role("button", name="Previous version").click()
    expect(answers(page).locator(".branches")).to_have_text("1/2")
    page.reload()
    expect(answers(page).locator(".branches")).to_have_text("1/2")


def test_editing_a_question_makes_a_branch_and_both_stay(page: Page) -> None:
    ask(page, "say one")
    ask(page, "say after one")
    questions(page).first.hover()
    questions(page).first.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your message").fill("say two")
    page.get_by_label("Edit your message").press("Enter")
    expect(last_answer(page)).to_have_text("two")
    finished(page)
    expect(questions(page)).to_have_count(1)
    expect(questions(page).locator(".branches")).to_have_text("2/2")
    questions(page).get_by_role("button", name="Previous version").click()
    expect(questions(page)).to_have_count(2)
    expect(last_answer(page)).to_have_text("after one")
    questions(page).first.get_by_role("button", name="Next version").click()
    expect(last_answer(page)).to_have_text("two")


def test_a_conversation_is_renamed_in_the_list_in_every_tab(page: Page) -> None:
    ask(page, "say hello")
    second = page.context.new_page()
    second.goto("/")
    expect(conversations(second)).to_have_text(["say hello"])
    choose(page, "say hello", "Rename")
    page.get_by_label("New title").fill("Greetings — کتاب‌ها")
    page.get_by_label("New title").press("Enter")
    for tab in (page, second):
        expect(conversations(tab)).to_have_text(["Greetings — کتاب‌ها"])
    expect(page).to_have_title("Greetings — کتاب‌ها · Hamdam")


def test_deleting_can_be_undone_and_otherwise_is_for_good(page: Page) -> None:
    ask(page, "say keep me")
    page.get_by_role("button", name="New chat").first.click()
    ask(page, "say delete me")
    choose(page, "say delete me", "Delete")
    expect(conversations(page)).to_have_text(["say keep me"])
    expect(page.get_by_text("What is on your mind")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(conversations(page)).to_have_text(["say delete me", "say keep me"])
    choose(page, "say delete me", "Delete")
    choose(page, "say keep me", "Rename")  # the list goes on working meanwhile
    page.get_by_label("New title").press("Escape")
    page.goto("/")  # leaving the page is the end of the offer
    expect(conversations(page)).to_have_text(["say keep me"])


def test_every_conversation_keeps_its_own_draft(page: Page) -> None:
    ask(page, "say one")
    composer(page).press_sequentially("a draft")
    page.get_by_role("button", name="New chat").first.click()
    expect(composer(page)).to_have_value("")
    composer(page).press_sequentially("another")
    conversations(page).first.click()
    expect(composer(page)).to_have_value("a draft")
    page.reload()
    expect(composer(page)).to_have_value("a draft")
    page.get_by_role("button", name="New chat").first.click()
    expect(composer(page)).to_have_value("another")


def test_shift_enter_is_a_new_line_and_the_field_grows(page: Page) -> None:
    low = composer(page).bounding_box()
    composer(page).press_sequentially("say a")
    composer(page).press("Shift+Enter")
    composer(page).press_sequentially("b")
    expect(composer(page)).to_have_value("say a\nb")
    high = composer(page).bounding_box()
    assert low
    assert high
    assert high["height"] > low["height"]
    composer(page).press("Enter")
    finished(page)
    expect(questions(page).locator(".bubble")).to_have_text("say a\nb")


def test_an_enter_that_ends_a_composition_does_not_send(page: Page) -> None:
    composer(page).fill("にほん")
    composer(page).dispatch_event("keydown", {"key": "Enter", "isComposing": True, "bubbles": True, "cancelable": True})
    composer(page).dispatch_event("keydown", {"key": "Enter", "keyCode": 229, "bubbles": True, "cancelable": True})
    expect(composer(page)).to_have_value("にほん")
    expect(questions(page)).to_have_count(0)


def test_a_refused_question_stays_with_its_reason_and_can_be_sent_again(site: Site, page: Page) -> None:
    ask(page, "say first")
    site.hold()
    second = page.context.new_page()
    second.goto(page.url)
    expect(last_answer(second)).to_have_text("first")
    second.evaluate("WebSocket.prototype.send = function () {}")  # this tab's stop and subscriptions get lost
    ask(page, "count 60", wait=False)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    ask(page, "x" * 9000, wait=False)  # while an answer is written Enter sends nothing
    expect(composer(page)).to_have_value("x" * 9000)
    site.let_run()
    finished(page)
    composer(page).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("too long for the model")
    expect(questions(page).last).to_contain_text("xxx")
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("alert")).to_contain_text("too long for the model")


def test_the_page_follows_the_answer_until_the_reader_moves_up(site: Site, page: Page) -> None:
    lines = "\n\n".join(f"Line {i}" for i in range(1, 60))
    site.hold()
    ask(page, f"say {lines}", wait=False)
    page.wait_for_function("document.querySelector('.answer') !== null")
    site.let(300)
    expect(last_answer(page)).to_contain_text("Line 25")
    at_end = "(e => e.scrollHeight - e.clientHeight - e.scrollTop < 2)(document.querySelector('.thread'))"
    page.wait_for_function(at_end)
    page.locator(".thread").hover()
    page.mouse.wheel(0, -200)
    jump = page.get_by_role("button", name="Jump to the latest")
    expect(jump).to_be_visible()
    top = page.evaluate("document.querySelector('.thread').scrollTop")
    site.let_run()
    finished(page)
    assert page.evaluate("document.querySelector('.thread').scrollTop") == top
    jump.click()
    page.wait_for_function(at_end)
    expect(jump).to_have_count(0)


def test_a_lost_connection_is_said_and_comes_back_by_itself(site: Site, page: Page) -> None:
    site.hold()
    ask(page, "count 60", wait=False)
    site.let(1 + 50)
    expect(last_answer(page)).to_contain_text("15 16")
    page.context.set_offline(True)
    site.call(lambda: _drop_sockets(site))
    expect(page.get_by_text("The connection was lost")).to_be_visible()
    site.let_run()
    page.context.set_offline(False)
    finished(page)
    expect(last_answer(page)).to_have_text(COUNT)
    expect(page.get_by_text("The connection was lost")).to_have_count(0)


async def _drop_sockets(site: Site) -> None:
    for connection in list(site.server.server_state.connections):
        connection.transport.abort()
