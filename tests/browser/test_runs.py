"""A directory of several runs in a browser: which one is shown, and choosing another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page
from tests.experiments.measure.written import write_study
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
        page.tab.wait_for_function("() => location.hash.includes('run=')")
        latest = page.tab.evaluate("() => document.querySelector('[data-testid=run]').value")
        links = page.tab.evaluate("() => [...document.querySelectorAll('a[href^=\"#/\"]')].map((link) => link.hash)")
        assert len(links) > 10
        assert all(f"run={latest}" in link for link in [page.tab.url, *links]), "a link holds when runs are added"
        page.timeline()
        page.tab.reload()
        shows(page, "second")
        page.tab.locator("[data-testid=run]").select_option(index=0)
        page.tab.wait_for_function("(key) => !location.hash.includes(key)", arg=latest)
        shows(page, "first")
        assert "#/timeline?" in page.tab.url
        page.settled()
        page.tab.go_back()
        page.tab.wait_for_function("(key) => location.hash.includes(key)", arg=latest)
        shows(page, "second")
        page.tab.reload()
        shows(page, "second")
        page.check()
    finally:
        page.close()


def test_a_study_begins_with_its_curves_and_leads_to_its_jobs(
    tmp_path: Path, browser: Any, serve: Callable[[Path], str]
) -> None:
    page = Page(browser, serve(write_study(tmp_path / "study")))
    try:
        page.ready()
        page.tab.wait_for_selector('[data-testid="nav-scaling"][aria-current=page]', state="attached")
        for chart in ("speed-up", "efficiency"):
            page.tab.wait_for_selector(f'[data-testid="chart-{chart}"][data-drawn]')
        assert page.id("run-name").text_content() == "study: 2 ranks"
        said = page.tab.locator("#main").inner_text()
        assert "projection, not measured" in said
        assert "measured, with its confidence interval" in said
        page.check(axe=True)
        page.id("jobs").locator("a", has_text="plain process").click()
        page.tab.wait_for_selector('[data-testid="nav-overview"][aria-current=page]', state="attached")
        page.tab.wait_for_function(
            "() => document.querySelector('[data-testid=run-name]')?.textContent === 'study: plain process'"
        )
        page.ready()
        page.tab.set_viewport_size({"width": 390, "height": 844})
        page.tab.emulate_media(color_scheme="dark")
        page.go("scaling")
        page.tab.wait_for_selector('[data-testid="chart-efficiency"][data-drawn]')
        page.check(axe=True)
    finally:
        page.close()
