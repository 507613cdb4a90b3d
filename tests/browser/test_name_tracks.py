"""All events with one name as a track: from an event and from a table, in a link and in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page

import rankscope
from rankscope.show.report.html_report import write_report

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]
TRACKS = "[data-testid=name-track]"


@pytest.fixture(params=["served", "report"])
def page(request: pytest.FixtureRequest, browser: Any, opened: Opener, late: Path, tmp_path: Path) -> Iterator[Page]:
    """The timeline of the same run from a server and from a report file."""
    if request.param == "served":
        found = opened(late)
        found.ready()
        yield found
        return
    file = tmp_path / "report.html"
    file.write_bytes(write_report(rankscope.open(late, executor="serial")))
    found = Page(browser, file.as_uri(), offline=True)
    yield found
    found.close()


def inked(page: Page) -> list[int]:
    """Of each pinned row, how many pixels are neither its ground nor the first ones of its eight steps."""
    found: list[int] = page.tab.evaluate(
        """() => {
          const canvas = document.querySelector('.tl-pixels');
          const top = canvas.getBoundingClientRect().top;
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          const pixels = new Uint32Array(data.buffer);
          return [...document.querySelectorAll('.tl-pins [data-testid^=named-]')].map((name) => {
            const at = name.getBoundingClientRect();
            const line = Math.round(at.top + at.height / 2 - top) * canvas.width;
            const row = pixels.subarray(line, line + canvas.width);
            return row.filter((pixel) => pixel !== row[0]).length - 8;
          });
        }"""
    )
    return found


def test_a_track_from_an_event_stays_in_the_link_and_is_removed(page: Page) -> None:
    page.timeline()
    page.find("/^gemm<4>$/")
    first = page.selected()
    page.press("t")
    page.settled()
    assert page.tab.locator(TRACKS).get_attribute("data-name") == "gemm<4>"
    assert page.tab.locator(".tl-pins [data-testid^=named-]").count() == 2  # a lane for each rank
    page.press("0")
    page.settled()
    assert [pixels > 0 for pixels in inked(page)] == [True, True]
    # The keys walk along it, and a click on it selects the event itself.
    page.press("]")
    page.selects("start", first["start"], other=True)
    second = page.selected()
    assert second["name"] == "gemm<4>"
    page.press("f")
    page.settled()
    page.press("Escape")
    page.id("selection").wait_for(state="detached")
    at = page.tab.evaluate(
        """() => {
          const canvas = document.querySelector('.tl-pixels').getBoundingClientRect();
          const name = document.querySelector('.tl-pins [data-testid^=named-]').getBoundingClientRect();
          return [canvas.left + canvas.width / 2, name.top + name.height / 2];
        }"""
    )
    page.tab.mouse.click(*at)
    assert page.selected() == second
    page.check(axe=True)
    # A link has the track; without it, it is gone.
    page.still()
    assert "names=gemm" in page.tab.url
    page.tab.reload()
    page.settled()
    assert page.tab.locator(TRACKS).get_attribute("data-name") == "gemm<4>"
    page.id("name-track-remove").focus()
    page.tab.keyboard.press("Enter")
    page.tab.locator(TRACKS).wait_for(state="detached")
    page.still()
    assert "names=" not in page.tab.url
    page.tab.go_back()
    page.check()


def test_a_row_of_a_table_opens_the_track_of_its_name(page: Page) -> None:
    page.go("kernels")
    page.tab.evaluate("() => { for (const fold of document.querySelectorAll('details.fold')) fold.open = true; }")
    row = page.tab.locator("[data-testid=table-kernels] tr[data-row]").first
    row.wait_for()
    name = row.locator("[data-column=name]").get_attribute("data-value")
    # With the keyboard: from the link to the event, on to that to the track.
    row.get_by_test_id("row-events").focus()
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("() => document.activeElement.dataset.testid") == "row-track"
    page.tab.keyboard.press("Enter")
    assert page.selected()["name"] == name
    page.tab.locator(TRACKS).wait_for()
    assert page.tab.locator(TRACKS).get_attribute("data-name") == name
    page.settled()
    page.check(axe=True)


def test_a_name_that_the_run_does_not_have_is_an_empty_track(page: Page) -> None:
    page.timeline("?names=no%20such%20name~")
    assert page.tab.locator(TRACKS).get_attribute("data-name") == "no such name"
    assert max(inked(page)) <= 0
    page.press("t")  # nothing is selected
    assert page.tab.locator(TRACKS).count() == 1
    page.check()
