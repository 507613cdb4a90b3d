"""Memory in a browser: a range of the curve filters the events, and leads to the same place in the timeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.analyses.test_memory_categories import a_job
from tests.browser.page import Page
from tests.kineto import write_ranks

pytestmark = pytest.mark.browser

TIMES = """(name) => [...document.querySelectorAll(`table[data-testid="table-memory_curve"] td[data-column="${name}"]`)]
  .map((cell) => cell.dataset.value)"""


@pytest.fixture(scope="module")
def of_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Rank 1's trace begins 40 µs later: its tables count from there, the timeline from the first event of both.
    later = [{**event, "ts": event["ts"] + 40} for event in a_job()]
    return write_ranks(tmp_path_factory.mktemp("memory") / "run", {0: a_job(), 1: later})


def test_a_range_filters_events_and_leads_to_the_timeline(opened: Callable[..., Page], of_memory: Path) -> None:
    page = opened(of_memory)
    page.ready()
    page.go("memory?rank=1")
    page.id("memory-range-start").fill("0.2")
    page.id("memory-range-end").fill("0.25")
    page.id("memory-range-apply").click()
    page.tab.wait_for_selector('[data-testid="table-memory_curve"]')
    times = [int(text) for text in page.tab.evaluate(TIMES, "time_ns")]
    # On the run's clock, which counts from rank 0's first event, 40 µs before the first of this file.
    assert times == [245_000, 247_000]
    assert set(page.tab.evaluate(TIMES, "rank")) == {"1"}
    page.id("memory-range-timeline").click()
    page.settled()
    place = page.tab.evaluate("() => location.hash")
    found = re.search(r"m=(\d+)_(\d+)", place)
    assert found is not None
    assert [int(text) for text in found.groups()] == [200_000, 250_000]


def test_a_drag_on_the_curve_chooses_the_range(opened: Callable[..., Page], of_memory: Path) -> None:
    page = opened(of_memory)
    page.ready()
    page.go("memory?rank=0")
    page.tab.wait_for_selector('[data-testid="chart-memory-composition"][data-drawn=true]')
    chart = page.id("chart-memory-composition")
    chart.scroll_into_view_if_needed()
    page.paused(100)
    box = chart.bounding_box()
    page.tab.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 100)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 100, steps=4)
    page.tab.mouse.up()
    page.tab.wait_for_function("() => /range=\\d+_\\d+/.test(location.hash)")
    low, high = (int(text) for text in re.search(r"range=(\d+)_(\d+)", page.tab.evaluate("location.hash")).groups())  # type: ignore[union-attr]
    assert 0 < low < high < 700_000
    page.id("memory-range-clear").click()
    page.tab.wait_for_function("() => !location.hash.includes('range=')")
