"""The fixtures of the browser tests: a server, headless Chromium, a page. What pages must never do fails any test."""
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.running import Site, Watched
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

expect.set_options(timeout=15_000)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture
def new_site(tmp_path: Path) -> Iterator[Site]:
    """A server on which there is nobody yet."""
    with Site(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()


@pytest.fixture
def open_context(site: Site, browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    contexts: list[tuple[BrowserContext, Watched]] = []

    def make(address: str = site.address, **options: Any) -> BrowserContext:
        usual = {"base_url": address, "viewport": {"width": 1280, "height": 800}, "locale": "en-US"}
        context = browser.new_context(**(usual | options))
        contexts.append((context, Watched(context, address)))
        context.watched = contexts[-1][1]  # type: ignore[attr-defined]
        return context

    yield make
    for context, watched in contexts:
        context.close()
        assert watched.faults == []


@pytest.fixture
def sign_in(site: Site, open_context: Callable[..., BrowserContext]) -> Callable[..., Page]:
    """A page on the chat of a person who was not here before, with the context's options."""
    return lambda **options: site.enter(open_context(**options))


@pytest.fixture
def page(sign_in: Callable[..., Page]) -> Page:
    return sign_in()
