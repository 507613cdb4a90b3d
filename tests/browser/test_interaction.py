"""How the timeline is used all day: tools in one line, keys, panes, matches, pins, flags, the strip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page
from tests.browser.test_timeline import window

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]


def box(page: Page, selector: str) -> dict[str, float]:
    found: dict[str, float] = page.tab.locator(selector).first.bounding_box()
    return found


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (390, 844)])
def test_the_picture_has_the_window_and_panes_are_in_view(opened: Opener, late: Path, width: int, height: int) -> None:
    page = opened(late, width=width, height=height, dark=width == 1024)
    page.ready()
    page.timeline()
    picture = box(page, ".tl-frame")
    assert picture["y"] <= 100  # a line of header and a line of tools
    assert picture["height"] >= height - 140
    page.press("e")
    page.id("selection").wait_for()
    page.press("m")
    page.id("measure").wait_for()
    panes = (".tl-below", ".tl-box") if width == 390 else (".tl-side", ".tl-below", ".tl-box")
    for pane in panes:
        at = box(page, pane)
        assert at["height"] >= 200, pane
        assert at["y"] + at["height"] <= height + 1, pane
    if width == 390:  # of the pane that was not used last there is the title: a press on it changes places
        assert 40 <= box(page, ".tl-side")["height"] < 60
        page.tab.locator(".tl-side h3").first.click()
        assert 40 <= box(page, ".tl-below")["height"] < 60
        assert box(page, ".tl-side")["height"] >= 200 and box(page, ".tl-box")["height"] >= 200
    assert page.tab.evaluate("() => document.documentElement.scrollHeight <= innerHeight")
    page.settled()
    page.check(axe=True)


def test_the_list_of_views_stays_where_it_is(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.go("overview")
    before = box(page, "[data-testid=nav-timeline]")
    page.timeline()
    assert box(page, "[data-testid=nav-timeline]") == before
    # Hidden by the reader it stays hidden, in every view and after a reload.
    page.id("menu").click()
    page.tab.wait_for_function("() => !document.querySelector('nav').classList.contains('open')")
    page.go("overview")
    page.tab.reload()
    page.ready()
    assert not page.id("nav-timeline").is_visible()
    page.id("menu").click()
    assert page.id("nav-timeline").is_visible()
    page.check()


def test_keys_work_wherever_the_focus_is(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline("?t=1000000_5000000")
    page.id("rank-1").focus()
    page.tab.keyboard.press("d")
    right = window(page, (1_000_000, 5_000_000))
    assert right[0] > 1_000_000
    page.tab.locator("main").focus()
    page.tab.keyboard.press("w")
    assert window(page, right)[1] - window(page, right)[0] < 4_000_000
    # In a field they are text.
    at = page.tab.evaluate("location.hash")
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("gemm")
    page.still()
    assert page.id("search").input_value() == "gemm"
    assert page.tab.evaluate("location.hash") == at
    page.tab.keyboard.press("Enter")
    name = page.selected()["name"]
    assert name == "gemm<4>"
    # The next of the name on its rank, and back, with the focus in the pane.
    first = page.selected()
    page.tab.locator("[data-testid=selection] button").first.focus()
    page.tab.keyboard.press("]")
    page.selects("start", first["start"], other=True)
    second = page.selected()
    assert second["name"] == name
    assert second["lane"] == first["lane"]
    assert float(second["start"]) > float(first["start"])
    page.tab.keyboard.press("[")
    page.selects("start", first["start"])
    # Help is a dialog; while it is open, keys are its own.
    page.tab.keyboard.press("?")
    assert page.id("help").is_visible()
    at = page.tab.evaluate("location.hash")
    page.tab.keyboard.press("d")
    page.still()
    assert page.tab.evaluate("location.hash") == at
    page.check(axe=True)
    page.tab.keyboard.press("Escape")
    assert not page.id("help").is_visible()
    assert page.id("selection").is_visible()


def test_matches_as_a_list_by_regular_expression(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline()
    place = box(page, "[data-testid=whole]")
    assert page.find("/^gemm<\\d>$|^forward$/") == "1 of 32"
    assert box(page, "[data-testid=whole]") == place  # the counter does not move the line
    page.id("hits-menu").locator("summary").click()
    rows = page.tab.locator("[data-testid=hits] tbody tr")
    rows.first.wait_for()
    cells: list[list[str]] = rows.evaluate_all("(rows) => rows.map((row) => [...row.cells].map((c) => c.textContent))")
    assert len(cells) == 32
    assert {name for name, *_ in cells} == {"gemm<4>", "forward"}
    assert sorted({rank for _, rank, *_ in cells}) == ["0", "1"]
    page.check(axe=True)
    rows.nth(5).locator("button").click()
    page.tab.wait_for_function("() => document.querySelector('[data-testid=search-count]').textContent === '6 of 32'")
    assert page.selected()["name"] == cells[5][0]
    page.tab.keyboard.press("Escape")
    # What is no expression is said, and nothing breaks.
    page.id("search").fill("/(/")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_function("() => document.querySelector('.tl-notice').textContent.includes('regular expression')")
    page.said.clear()  # the browser notes the 400
    assert page.find("gemm") == "1 of 16" or page.id("search-count").text_content().endswith("of 16")


def test_pinned_and_hidden_rows_and_their_order_are_in_the_link(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline("?open=0")
    names = "() => [...document.querySelectorAll('.tl-name.rank .which')].map((name) => name.textContent)"
    assert page.tab.evaluate(names) == ["Rank 0", "Rank 1"]
    page.id("rank-1").focus()
    page.tab.keyboard.press("p")
    page.tab.wait_for_function("() => document.querySelector('.tl-pins [data-testid=rank-1]') !== null")
    assert page.id("rank-1").evaluate("(name) => name === document.activeElement")  # which keeps the focus
    assert box(page, "[data-testid=rank-1]")["y"] < box(page, "[data-testid=rank-0]")["y"]
    # A click in the pinned row selects an event of its rank, wherever the others are scrolled to.
    page.tab.locator(".tl-box").evaluate("(rows) => { rows.scrollTop = 40; }")
    page.settled()
    stage, row = box(page, "[data-testid=timeline-stage]"), box(page, "[data-testid=rank-1]")
    page.tab.mouse.click(stage["x"] + stage["width"] * 0.41, row["y"] + 5)
    assert page.selected()["lane"] == str(lanes_of(page, 1)[0])
    page.tab.keyboard.press("Escape")
    # Hidden with the button at the name, which the pointer brings.
    page.id("rank-0").hover()
    page.id("row-hide").click()
    page.tab.wait_for_function("() => document.querySelector('[data-testid=rank-0]') === null")
    page.still()
    page.tab.reload()
    page.ready()
    page.settled()
    assert page.tab.evaluate(names) == ["Rank 1"]
    page.id("view-menu").locator("summary").click()
    page.check(axe=True)
    page.id("show-hidden").click()
    page.tab.wait_for_function("() => document.querySelector('[data-testid=rank-0]') !== null")
    assert page.id("show-hidden").is_disabled()
    page.timeline()
    assert page.tab.evaluate(names) == ["Rank 0", "Rank 1"]
    page.tab.locator("#tl-order").select_option("late")
    page.tab.wait_for_function("() => location.hash.includes('order=late')")
    assert page.tab.evaluate(names) == ["Rank 1", "Rank 0"]
    page.check(axe=True)


def lanes_of(page: Page, rank: int) -> list[int]:
    layout = page.tab.evaluate("async () => (await fetch('api/timeline')).json()")
    tracks = [number for number, track in enumerate(layout["tracks"]) if track["rank"] == rank]
    return [lane for lane, track in enumerate(layout["lanes"]["track"]) if track in tracks]


def test_flags_are_in_the_link(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline("?t=0_8000000")
    stage = box(page, "[data-testid=timeline-stage]")
    page.tab.mouse.click(stage["x"] + stage["width"] / 2, stage["y"] + 20)
    page.id("flag").locator("input").fill("late ~ here! 100 %")
    page.check(axe=True)
    page.tab.keyboard.press("Enter")
    assert not page.id("flag").is_visible()
    page.still()
    assert "flags=" in page.tab.url
    page.tab.reload()
    page.ready()
    page.settled()
    stage = box(page, "[data-testid=timeline-stage]")
    page.tab.mouse.click(stage["x"] + stage["width"] / 2 + 4, stage["y"] + 24)
    assert page.id("flag").locator("input").input_value() == "late ~ here! 100 %"
    page.id("flag").locator("button").first.click()
    page.still()
    assert "flags=" not in page.tab.url
    page.check()


def test_the_tooltip_is_at_the_pointer_and_follows_the_layout(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline("?t=1000000_2000000&lanes=thread")
    page.find("aten::mm")
    page.press("Escape")
    page.timeline("?t=1000000_1200000&lanes=thread")
    rows = page.tab.locator(".tl-name.part").first.bounding_box()
    stage = box(page, "[data-testid=timeline-stage]")
    x, y = stage["x"] + stage["width"] * 0.25, rows["y"] + 8  # 1.05 ms: within the step, the operator is a row below
    page.tab.mouse.move(x, y)
    tip = page.id("tip")
    tip.wait_for()
    page.tab.wait_for_function("() => document.querySelector('[data-testid=tip]').textContent.includes('Self time')")
    text = str(tip.text_content())
    assert "ProfilerStep#11" in text
    assert "Duration990.0\xa0µs" in text
    assert "Self time785.0\xa0µs" in text  # without 100 of the operator, 5 of a launch and 100 of the range
    at = tip.bounding_box()
    assert abs(at["x"] - x) < 40
    assert abs(at["y"] - y) < 40
    # The rows change below a pointer that rests: what is there now is named, or nothing.
    page.id("menu").click()
    page.tab.mouse.move(x, y)
    tip.wait_for()
    page.tab.keyboard.press("Shift+M")  # the flag's box changes nothing of it
    page.tab.keyboard.press("Escape")
    at = tip.bounding_box()
    assert abs(at["x"] - x) < 40
    assert abs(at["y"] - y) < 40
    page.check()


def test_the_strip_of_the_whole_run_moves_the_view(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline("?t=0_1000000")
    strip = box(page, ".tl-map-area")
    frame = box(page, ".tl-map-view")
    assert frame["width"] == pytest.approx(strip["width"] / 8, rel=0.15)
    page.tab.mouse.click(strip["x"] + strip["width"] * 0.75, strip["y"] + 10)
    low, high = window(page, (0, 1_000_000))
    assert high - low == pytest.approx(1_000_000, abs=10)
    span = page.tab.evaluate("async () => (await (await fetch('api/timeline')).json()).span_ns")
    assert (low + high) / 2 == pytest.approx(-0.02 * span + 0.75 * 1.04 * span, rel=0.02)
    page.tab.mouse.down()
    page.tab.mouse.move(strip["x"] + strip["width"] * 0.5, strip["y"] + 10, steps=4)
    page.tab.mouse.up()
    assert window(page, (low, high))[0] == pytest.approx(low - 0.25 * 1.04 * span, rel=0.03)
    page.check(axe=True)


def test_what_takes_long_is_said(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline()
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.tab.route("**/api/range*", hold)
    page.press("m")
    page.id("busy").wait_for()
    assert page.id("busy").text_content() == "Adding up the range …"
    held[0].continue_()
    page.id("measure").wait_for()
    page.id("busy").wait_for(state="hidden")
    page.check()


def test_a_row_of_a_table_leads_to_its_events_and_back(opened: Opener, late: Path) -> None:
    page = opened(late, height=600)
    page.ready()
    page.go("kernels")
    page.tab.evaluate("() => { for (const fold of document.querySelectorAll('details.fold')) fold.open = true; }")
    rows = page.tab.locator("[data-testid=table-kernels] tr[data-row]")
    rows.first.wait_for()
    row = rows.nth(min(5, rows.count() - 1))
    number, rank = row.get_attribute("data-row"), row.locator("[data-column=rank]").get_attribute("data-value")
    link = row.get_by_test_id("row-events")
    name = row.locator("[data-column=name]").get_attribute("data-value")
    link.click()
    page.id("selection").wait_for()
    chosen = page.tab.evaluate("() => document.querySelector('[data-testid=selection]').textContent")
    assert name in chosen
    assert f"rank {rank}" in chosen.lower()
    page.tab.go_back()
    again = page.tab.locator("[data-testid=table-kernels] tr[aria-current=true]")
    again.wait_for()
    assert again.get_attribute("data-row") == number
    assert again.is_visible()


def test_a_link_to_what_is_shown_is_copied(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.go("kernels")
    page.tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.id("copy-link").click()
    page.tab.wait_for_function("() => document.querySelector('[data-testid=copy-link]').textContent === 'Copied'")
    assert page.tab.evaluate("() => navigator.clipboard.readText()") == page.tab.url


def test_a_row_of_collectives_leads_to_its_own_event(opened: Opener, late: Path) -> None:
    page = opened(late, height=600)
    page.ready()
    page.go("collectives")
    rows = page.tab.locator("[data-testid=table-collectives] tr[data-row]")
    rows.first.wait_for()
    row = rows.nth(min(3, rows.count() - 1))
    cell = {name: row.locator(f"[data-column={name}]").get_attribute("data-value") for name in ("rank", "duration_ns")}
    row.get_by_test_id("row-events").click()
    page.id("selection").wait_for()
    shown = page.id("selection")
    start, end = (int(str(shown.get_attribute(f"data-{side}"))) for side in ("start", "end"))
    assert end - start == int(str(cell["duration_ns"]))
    assert f"rank {cell['rank']}" in str(shown.text_content()).lower()
    # From the event to what was open on the host around its launch.
    around = page.id("around").locator("button.link").first
    around.wait_for()
    around.click()
    page.tab.wait_for_function(f"() => document.querySelector('[data-testid=selection]')?.dataset.start !== '{start}'")
    assert int(str(shown.get_attribute("data-start"))) < start
    page.check(axe=True)
