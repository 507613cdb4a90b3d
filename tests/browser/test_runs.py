"""A directory of several runs in a browser: which one is shown, and choosing another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page
from tests.kineto import small_step, trace, write

pytestmark = pytest.mark.browser

CHOSEN = "document.querySelector('[data-testid=run]').selectedOptions[0].label"


def shows(page: Page, name: str) -> None:
    """Waits until the chooser and the view are those of a run."""
    page.tab.wait_for_function(
        f"(name) => document.querySelector('#app[data-phase=ready] [data-testid=run]') && {CHOSEN}.includes(name)",
        arg=name,
    )


def test_the_chooser_shows_what_is_shown_and_keeps_the_view(
    tmp_path: Path, browser: Any, serve: Callable[[Path], str]
) -> None:
    for number, name in enumerate(("first", "second")):
        events = [{**each, "ts": each["ts"] + 5e6 * number} for each in small_step(number=number)]
        content = trace(events, rank=0, rankscope={"schema_version": 1, "run_id": f"{name}-id"})
        write(tmp_path / "runs" / name / "rank0.json", content)
    page = Page(browser, serve(tmp_path / "runs"))  # cold: only one run is known at first
    try:
        shows(page, "second")  # the latest, which is the last of the list
        page.timeline()
        page.tab.reload()
        shows(page, "second")
        page.tab.locator("[data-testid=run]").select_option(index=0)
        page.tab.wait_for_function("() => location.hash.includes('run=')")
        shows(page, "first")
        assert "#/timeline?" in page.tab.url
        page.settled()
        page.tab.go_back()
        page.tab.wait_for_function("() => !location.hash.includes('run=')")
        shows(page, "second")
        page.tab.reload()
        shows(page, "second")
        page.check()
    finally:
        page.close()
