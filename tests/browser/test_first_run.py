"""From the set-up link to the first answer, and out and in again; on a server where there is nobody yet."""
from collections.abc import Callable

import pytest
from browser.running import PASSWORD, Site
from browser.talk import ID, ask, composer, last_answer
from playwright.sync_api import BrowserContext, Page, expect

pytestmark = pytest.mark.browser


def test_the_set_up_link_makes_the_first_account_which_can_chat_at_once(
    new_site: Site, open_context: Callable[..., BrowserContext]
) -> None:
    link = f"/set-up?token={new_site.call(new_site.house.set_up.renew)}"
    context = open_context(new_site.address)
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_text("has no accounts yet")).to_be_visible()

    context.watched.refusals = 2
    page.goto(link)
    page.get_by_label("Name").fill("Sara")
    page.get_by_label("Password").fill("password")
    page.get_by_role("button", name="Create the account").click()
    expect(page.get_by_role("alert")).to_contain_text("guessed first")
    expect(page.get_by_label("Name")).to_have_value("Sara")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Create the account").click()

    expect(page.get_by_text("What is on your mind, Sara?")).to_be_visible()
    ask(page, "say Hello, Sara.")
    expect(last_answer(page)).to_have_text("Hello, Sara.")
    expect(page).to_have_url(ID)

    page.goto(link)
    expect(page.get_by_role("heading", name="no longer works")).to_be_visible()


def test_signing_out_and_in_again_leads_back_to_the_conversation(page: Page) -> None:
    ask(page, "say Remember me.")
    address = page.url
    name = page.locator(".account-button bdi").inner_text()
    page.locator(".account-button").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

    page.context.watched.refusals = 1  # type: ignore[attr-defined]
    page.goto(address)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill("not the password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(address)
    expect(last_answer(page)).to_have_text("Remember me.")


def test_the_forms_work_without_any_script(site: Site, open_context: Callable[..., BrowserContext]) -> None:
    site.call(lambda: site.house.accounts.create("No Script", PASSWORD))
    page = open_context(java_script_enabled=False).new_page()
    page.goto("/sign-in?next=/c/conv_nothing")
    page.get_by_label("Name").fill("no script")
    page.get_by_label("Password").fill(PASSWORD)
    page.context.watched.refusals = 1  # type: ignore[attr-defined]
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="There is nothing here")).to_be_visible()
    page.get_by_role("link", name="Back to the conversations").click()
    expect(page.locator("noscript main")).to_contain_text("needs JavaScript")


def test_a_sign_in_that_ended_elsewhere_leads_to_the_door_and_keeps_the_draft(site: Site, page: Page) -> None:
    ask(page, "say One.")
    address, name = page.url, page.locator(".account-button bdi").inner_text()
    composer(page).press_sequentially("half a thou")
    site.call(lambda: site.house.accounts.set_password(name, "another good password"))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill("another good password")
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(address)
    expect(composer(page)).to_have_value("half a thou")
