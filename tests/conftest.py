"""What several test files share: one browser, since two in one process do not get along; what is slow."""

import os
import shutil

import pytest


def pytest_collection_modifyitems(items):
    """What looks at the built site is slow, for it has to be built; what opens a browser is marked so."""
    for item in items:
        for fixture, mark in (("site", "slow"), ("browser", "browser")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)


@pytest.fixture(scope="session")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI tests in a browser: chromium and playwright must be installed")
        pytest.skip("no chromium with playwright here: nothing is tested in a browser")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update"]  # fmt: skip
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=quiet)
        yield running
        running.close()


@pytest.fixture
def show(browser):
    """show(widget, …, theme=, width=) -> a page with these widgets; errors and requests fail it."""
    opened = []

    def open_page(*shown, theme="light", width=390, stripped=False):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            has_touch=True,
            color_scheme=theme,
            java_script_enabled=not stripped,
        )
        page = context.new_page()
        page.on("pageerror", lambda error: opened.append(str(error)))
        page.on("console", lambda message: opened.append(message.text))
        page.on("request", lambda request: opened.append(request.url))
        body = "<hr>".join(w.html for w in shown)
        page.set_content(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>w</title>'
            f'<meta name="viewport" content="width=device-width"><style>body{{margin:16px;'
            f"background:Canvas;color:CanvasText;color-scheme:light dark}}</style>{body}</html>"
        )
        pages.append(context)
        return page

    pages = []
    yield open_page
    for context in pages:
        context.close()
    assert opened == []
