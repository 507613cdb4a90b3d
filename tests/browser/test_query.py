"""The view Query in a browser: run, chart, open a row's event, come back, share by link."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.browser.page import Page
from tests.kineto import kernel, step, write_ranks

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]
SQL = "SELECT rank, name, start_ns, end_ns FROM device_events ORDER BY rank DESC, start_ns"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    events = [step(1, 0, 100), kernel("first", 10, 20), kernel("<b>second</b>", 50, 30)]
    return write_ranks(tmp_path / "small", {0: events, 1: events})


def test_rows_open_in_the_timeline_and_the_link_keeps_the_query(opened: Opener, small: Path) -> None:
    page = opened(small)
    page.ready()
    page.go("query")
    page.id("query-sql").fill(SQL)
    page.id("query-run").click()
    page.id("table-query").wait_for()
    assert page.id("query-status").inner_text().startswith("4 rows")
    page.id("query-chart-fold").locator("summary").click()
    page.id("chart-query").wait_for()
    page.id("query-save-name").fill("mine")
    page.id("query-save").click()
    page.tab.locator("[data-testid=table-query] tr[data-row='1'] td[data-column=name] a").click()
    page.settled()
    selected = page.selected()
    assert selected["name"] == "<b>second</b>"
    assert (selected["start"], selected["end"]) == ("50000", "80000")
    assert "rank 1" in page.id("selection").inner_text()  # rows are those of rank 1 first
    page.tab.go_back()
    page.id("table-query").wait_for()
    assert page.id("query-sql").input_value() == SQL
    assert "mine" in page.id("query-saved").inner_text()
    address = page.tab.url
    page.tab.goto("about:blank")
    page.tab.goto(address)
    page.id("table-query").wait_for()
    assert page.id("query-sql").input_value() == SQL
    assert page.id("chart-query").count() == 1
    page.check()


def test_an_error_names_the_near_column(opened: Opener, small: Path) -> None:
    page = opened(small)
    page.ready()
    page.go("query")
    page.id("query-sql").fill("SELECT nam FROM device_events")
    page.id("query-sql").press("Control+Enter")
    page.id("error-state").wait_for()
    assert "near names: name" in page.id("error-state").inner_text()
