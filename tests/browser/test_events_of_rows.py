"""Rows and bars of the views lead to their events in the timeline, and Back to where they were left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests import kineto
from tests.browser.page import Page

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]
FOCUSED = """() => ({
  row: document.activeElement.closest('tr')?.dataset.row ?? null, text: document.activeElement.textContent,
  seen: ((box) => box.top >= 0 && box.bottom <= innerHeight)(document.activeElement.getBoundingClientRect()),
})"""
BACK = "() => document.activeElement.matches('a.row-link')"


def followed(page: Page, link: str, at: int) -> dict[str, str]:
    """What a link of the view selects; the reader is back at the link after it."""
    target = page.tab.locator(link).nth(at)
    target.wait_for()
    before = {"row": target.evaluate("(e) => e.closest('tr')?.dataset.row ?? null"), "text": target.text_content()}
    target.click()
    chosen = page.selected()
    page.tab.go_back()
    page.tab.wait_for_function(BACK)
    page.paused(200)
    after = page.tab.evaluate(FOCUSED)
    assert {key: after[key] for key in before} == before
    assert after["seen"], "the row is out of sight"
    return chosen


LINKS = [
    ("operators", "[data-testid=bars-operators] a", 0, "aten::mm"),
    ("operators", "[data-testid=table-operators] a.row-link", 0, "aten::mm"),
    ("kernels", "[data-testid=bars-kernels] a", 0, "gemm<4>"),
    ("modules", "[data-testid=module-tree] a", 0, "nn.Module: Linear_0"),
    ("modules", "[data-testid=bars-modules] a", 0, "nn.Module: Linear_0"),
    ("collectives", "[data-testid=bars-collectives] a", 0, None),
    ("collectives", "[data-testid=table-collective_summary] a.row-link", 0, None),
    ("collectives", "[data-testid=table-collectives] a.row-link", 3, None),
]


def test_an_event_and_back(opened: Opener, late: Path) -> None:
    page = opened(late, height=600)
    page.ready()
    for view, link, at, name in LINKS:
        page.go(view)
        chosen = followed(page, link, at)
        assert name in (chosen["name"], None), link


def test_a_kind_of_collective_leads_to_its_longest_call(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.go("collectives")
    chosen = followed(page, "[data-testid=table-collective_summary] a.row-link", 0)
    most = page.tab.locator("[data-testid=table-collective_summary] tr[data-row] td[data-column=max_ns]").first
    assert int(chosen["end"]) - int(chosen["start"]) == int(str(most.get_attribute("data-value")))


def a_job(folder: Path, mm: float, at: float) -> None:
    """Three steps of a net with a linear inside, of one rank."""
    events: list[kineto.Event] = []
    for number in range(3):
        start = at + 1000.0 * number
        events += [
            kineto.step(number, start, 1000),
            kineto.frame("nn.Module: Net_0", start + 5, 800),
            kineto.op("aten::relu", start + 10, 20, external=10 * number + 3),
            kineto.frame("nn.Module: Linear_0", start + 100, 400),
            kineto.op("aten::mm", start + 110, mm, external=10 * number + 1),
            kineto.launch(start + 111, 5, correlation=10 * number + 1, external=10 * number + 1),
            kineto.kernel("gemm", start + 600, 3 * mm, correlation=10 * number + 1, external=10 * number + 1),
        ]
    about = {"schema_version": 1, "run_id": folder.name}
    kineto.write(folder / "rank0.json", kineto.trace(events, rank=0, rankscope=about))


def test_modules_of_two_runs_as_a_tree(opened: Opener, tmp_path: Path) -> None:
    a_job(tmp_path / "runs" / "first", 30, 0)
    a_job(tmp_path / "runs" / "second", 40, 5e6)
    page = opened(tmp_path / "runs")
    page.tab.wait_for_function("() => document.querySelector('[data-testid=run]')?.options.length === 2")
    page.ready()
    page.go("diff?section=modules_device")
    tree = page.id("diff-modules")
    tree.wait_for()
    rows = tree.locator("tbody tr")
    shown = [[cell.strip() for cell in row.locator("th, td").all_text_contents()][:5] for row in rows.all()]
    assert shown == [
        ["▾Net_0", "90.00\xa0µs", "120.0\xa0µs", "+30.0\xa0µs", "+33.3\xa0%"],
        ["▾Linear_0", "90.00\xa0µs", "120.0\xa0µs", "+30.0\xa0µs", "+33.3\xa0%"],
        ["aten::mm operator", "90.00\xa0µs", "120.0\xa0µs", "+30.0\xa0µs", "+33.3\xa0%"],
    ]
    # What did not change is one click away.
    page.id("diff-unchanged").click()
    assert rows.count() == 4
    page.id("diff-unchanged").click()
    rows.nth(1).locator("button").press("Enter")
    assert rows.count() == 2
    rows.nth(1).locator("button").press("Enter")
    page.check(axe=True)
    # Either side's time leads to the events of its own run.
    run = "() => new URLSearchParams(location.hash.split('?')[1]).get('run')"
    runs = []
    for column in (0, 1):
        rows.nth(1).locator("td").nth(column).locator("a").click()
        assert page.selected()["name"] == "nn.Module: Linear_0"
        runs.append(page.tab.evaluate(run))
        page.tab.go_back()
        page.tab.wait_for_function(BACK)
    assert len(set(runs)) == 2


MEASURED = """(wide) => {
  const range = document.querySelector('[data-testid=measure]')?.dataset;
  return range !== undefined && range.to - range.from === wide;
}"""
# The measured range is that of the address, of the gap with this number.
SHOWS_GAP = """(number) => {
  const params = new URLSearchParams(location.hash.split('?')[1]);
  const pane = document.querySelector('[data-testid=measure]');
  return params.get('gap') === String(number) && pane && params.get('m') === `${pane.dataset.from}_${pane.dataset.to}`;
}"""


def test_idle_rows_lead_to_their_longest_gaps_which_are_walked(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.go("idle")
    page.tab.locator("[data-testid=table-idle_by_device] td[data-column=nothing_ns] a").first.click()
    page.id("measure").wait_for()
    page.go("idle")
    page.id("fold-idle").locator("summary").first.click()
    first = page.tab.locator("[data-testid=table-idle] td[data-column=cause] a.row-link").first
    first.wait_for()
    lines = page.tab.locator("[data-testid=table-idle] tr[data-row]").all()
    rows = [
        {name: line.locator(f"td[data-column={name}]").get_attribute("data-value") for name in ("cause", "max_ns")}
        for line in lines
    ]
    assert len(rows) > 5 and {"operator", "nothing", "host_wait"} <= {row["cause"] for row in rows}
    first.click()
    walk = page.id("row-walk")
    for number, row in enumerate(rows, 1):
        walk.get_by_text(f"Idle: row {number} of {len(rows)}, {row['cause']}").wait_for()
        if row["cause"] == "operator":  # it may leave several gaps: its call is selected
            page.id("selection").wait_for()
        else:
            page.tab.wait_for_function(MEASURED, arg=int(str(row["max_ns"])))
        if number < len(rows):
            page.id("row-next").press("Enter")
    assert page.id("row-next").get_attribute("aria-disabled") == "true"
    page.check(axe=True)
    page.id("row-back").click()
    page.tab.wait_for_function(BACK)
    assert page.tab.evaluate("location.hash").startswith("#/idle")


def test_all_gaps_of_an_idle_row_are_walked_the_longest_first(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.go("idle")
    page.id("fold-idle").locator("summary").first.click()
    line = page.tab.locator("[data-testid=table-idle] tr[data-row]").filter(has_text="host_wait").first
    gaps, idle_ns, longest = (
        int(line.locator(f"td[data-column={name}]").get_attribute("data-value"))
        for name in ("gaps", "idle_ns", "max_ns")
    )
    assert gaps > 2
    line.locator("td[data-column=cause] a.row-link").click()
    page.tab.wait_for_function(MEASURED, arg=longest)
    lengths = [longest]
    for number in range(1, gaps + 1):
        page.id("gap-which").get_by_text(f"gap {number} of {gaps} by length").wait_for()
        if number > 1:
            page.tab.wait_for_function(SHOWS_GAP, arg=number - 1)
            measure = page.id("measure")
            lengths.append(int(measure.get_attribute("data-to")) - int(measure.get_attribute("data-from")))
        if number < gaps:
            page.id("gap-next").press("Enter")
    assert lengths == sorted(lengths, reverse=True) and sum(lengths) == idle_ns
    assert page.id("gap-next").get_attribute("aria-disabled") == "true"
    assert page.tab.evaluate("document.activeElement.dataset.testid") == "gap-next"
    page.tab.go_back()
    page.id("gap-which").get_by_text(f"gap {gaps - 1} of {gaps}").wait_for()
    page.check(axe=True)


def test_rows_without_events_lead_to_their_rank_and_step_or_say_why_not(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.go("idle")
    page.tab.locator("[data-testid=table-launches] tr[data-row='1'] td[data-column=rank] a").click()
    page.tab.wait_for_function("() => document.querySelector('[data-testid=rank-1]')?.ariaExpanded === 'true'")
    page.go("steps")
    link = page.tab.locator("[data-testid=table-step_time] tr[data-row] td[data-column=step] a").first
    link.wait_for()
    assert "rank=0" in link.get_attribute("href") and "step=10" in link.get_attribute("href")
    page.go("overview")
    page.id("fold-overview").locator("summary").first.click()
    page.id("no-events-overview").wait_for()
    page.check()
