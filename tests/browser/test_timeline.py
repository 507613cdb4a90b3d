"""The timeline's gestures in a browser: pinch, wheel and drag; folding; jumps; what a link says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.browser.conftest import late_events
from tests.browser.page import Page
from tests.kineto import (
    kernel,
    launch,
    op,
    small_step,
    step,
    trace,
    write,
    write_ranks,
)  # fmt: skip

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]


SIGHT = "new URLSearchParams(location.hash.split('?')[1] ?? '').get('t')"


def window(page: Page, before: tuple[float, float] | None = None) -> tuple[float, float]:
    """What is in sight, by the address, once that is another than before and has come to rest; ns."""
    old = None if before is None else f"{before[0]:.0f}_{before[1]:.0f}"
    page.tab.wait_for_function(f"(old) => {SIGHT} !== null && {SIGHT} !== old", arg=old)
    page.still()
    low, high = (float(part) for part in page.tab.evaluate(f"() => {SIGHT}").split("_"))
    return low, high


def at_point(page: Page, share: float) -> tuple[float, float]:
    box = page.id("timeline-stage").bounding_box()
    return box["x"] + share * box["width"], box["y"] + 90


def test_a_pinch_zooms_where_the_fingers_are(opened: Opener, late: Path) -> None:
    page = opened(late, width=390, height=844, touch=True)
    page.ready()
    page.timeline("?t=0_8000000")
    session = page.tab.context.new_cdp_session(page.tab)
    middle, y = at_point(page, 0.25)

    def touch(kind: str, apart: float | None) -> None:
        at = [] if apart is None else [middle - apart, middle + apart]
        points = [{"x": x, "y": y, "id": finger} for finger, x in enumerate(at)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 20)
    for apart in (25, 30, 35, 40):
        touch("touchMove", apart)
    touch("touchEnd", None)
    low, high = window(page, (0, 8_000_000))
    # Twice as far apart: half as much in sight, and the instant between the fingers stays there.
    assert high - low == pytest.approx(4_000_000, rel=0.03)
    assert low + 0.25 * (high - low) == pytest.approx(2_000_000, abs=60_000)
    assert page.tab.evaluate("() => visualViewport.scale") == 1  # the page itself was not zoomed
    touch("touchStart", 60)
    for apart in (50, 40, 30):
        touch("touchMove", apart)
    touch("touchEnd", None)
    before = window(page, (low, high))
    assert before[1] - before[0] == pytest.approx(8_000_000, rel=0.06)
    # One finger moves.
    for kind, x in (("touchStart", middle), ("touchMove", middle + 30), ("touchMove", middle + 60), ("touchEnd", None)):
        points = [] if x is None else [{"x": x, "y": y}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert window(page, before)[0] < before[0]
    page.check(axe=True)


def test_the_wheel_zooms_with_control_and_moves_with_shift(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline("?t=0_8000000")
    x, y = at_point(page, 0.5)
    page.tab.mouse.move(x, y)
    page.tab.keyboard.down("Control")  # as a touchpad's pinch arrives, too
    page.tab.mouse.wheel(0, -200)
    page.tab.keyboard.up("Control")
    low, high = window(page, (0, 8_000_000))
    assert high - low == pytest.approx(8_000_000 * 2.718281828 ** (-0.8), rel=0.01)
    assert (low + high) / 2 == pytest.approx(4_000_000, abs=20_000)
    page.tab.keyboard.down("Shift")
    page.tab.mouse.wheel(0, 100)
    page.tab.keyboard.up("Shift")
    moved = window(page, (low, high))
    assert moved[0] > low
    assert moved[1] - moved[0] == pytest.approx(high - low, abs=2)
    # A drag with Shift moves what is in sight by as much; the picture is the one a link draws.
    page.tab.keyboard.down("Shift")
    page.tab.mouse.down()
    page.tab.mouse.move(x + 150, y, steps=5)
    page.tab.mouse.up()
    page.tab.keyboard.up("Shift")
    dragged = window(page, moved)
    page.settled()
    width = page.id("timeline-stage").bounding_box()["width"]
    assert moved[0] - dragged[0] == pytest.approx(150 / width * (high - low), rel=0.02)
    picture = "() => document.querySelector('.tl-pixels').toDataURL()"
    drawn = page.tab.evaluate(picture)
    page.tab.reload()
    page.tab.wait_for_selector("#app[data-phase=ready]")
    page.settled()
    assert page.tab.evaluate(picture) == drawn
    page.check()


def test_a_finding_leads_to_its_event(opened: Opener, tmp_path: Path) -> None:
    # Without a host that waits for its device, a late one would not make the step longer.
    waits = [launch(1000 * n + 140, 562, correlation=900 + n, name="cudaDeviceSynchronize") for n in range(8)]
    page = opened(write_ranks(tmp_path / "run", {rank: [*late_events(rank), *waits] for rank in (0, 1)}))
    page.ready()
    page.go("overview")
    summary = page.tab.evaluate("async () => (await fetch('api/summary')).json()")
    straggler = next(each for each in summary["findings"] if each["id"] == "straggler")
    assert straggler["steps"] == []  # it lasts: no step of its own
    event = straggler["place"].pop("event")
    assert straggler["place"] == {"rank": 1, "step": 14}
    assert (event["rank"], event["peers"], event["from_ns"], event["to_ns"]) == (1, [0], 4_200_000, 4_700_000)
    shown = page.tab.locator('[data-finding=straggler] [data-testid="finding-event"]').first
    assert shown.text_content() == "Show the event on rank 1"
    shown.click()
    page.id("selection").wait_for()
    page.settled()
    assert page.id("rank-1").first.get_attribute("aria-expanded") == "true"
    low, high = window(page)
    assert (low, high) == pytest.approx((4_150_000, 4_750_000), abs=2)
    assert "the other ranks have been waiting for it" in str(page.id("selection").text_content())
    # The same from the timeline's own list.
    page.timeline()
    page.tab.locator("#tl-finding").select_option(label=straggler["title"][:70])
    assert window(page) == pytest.approx((low, high), abs=2)
    # A symptom has an event of its own.
    page.go("overview")
    symptom = page.tab.locator("[data-finding=straggler] [data-testid=symptom]").first
    page.tab.locator("[data-finding=straggler] summary").filter(has_text="Same cause").click()
    symptom.locator("summary").first.click()
    symptom.get_by_test_id("finding-event").click()
    page.tab.wait_for_function("() => document.querySelector('[data-testid=selection]')?.dataset.start !== '4550000'")
    page.id("selection").wait_for()
    assert page.id("selection-reason").count() == 1
    page.check(axe=True)


def test_python_frames_are_folded_until_they_are_opened(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline()
    python = page.tab.locator(".tl-name[data-kind=python]").first
    assert python.get_attribute("aria-expanded") == "false"
    python.click()
    assert page.tab.locator(".tl-name[data-kind=python]").first.get_attribute("aria-expanded") == "true"
    page.tab.wait_for_function("() => location.hash.includes('tracks=')")
    page.tab.reload()
    page.tab.wait_for_selector("#app[data-phase=ready]")
    page.settled()
    assert page.tab.locator(".tl-name[data-kind=python]").first.get_attribute("aria-expanded") == "true"
    # Searching for a frame that is folded away opens what hides it.
    page.timeline()
    page.find("Linear_0")
    assert page.tab.locator(".tl-name[data-kind=python]").first.get_attribute("aria-expanded") == "true"
    page.check(axe=True)


def test_counters_and_filter_and_search_back_and_forth(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    page.timeline()
    rows = page.tab.locator(".tl-name.counter")
    assert rows.count() >= 2
    page.id("view-menu").locator("summary").click()
    toggle = page.id("counters")
    assert toggle.get_attribute("aria-pressed") == "true"
    toggle.click()
    page.tab.wait_for_function("() => document.querySelectorAll('.tl-name.counter').length === 0")
    assert toggle.get_attribute("aria-pressed") == "false"
    page.id("lane-filter").fill("stream")
    page.tab.wait_for_function("() => document.querySelectorAll('.tl-name[data-kind=python]').length === 0")
    page.id("lane-filter").fill("no such lane")
    said = page.id("filter-count")
    said.filter(has_text="No lane matches.").wait_for()
    page.id("lane-filter").fill("/(/")
    said.filter(has_text="Not a valid expression.").wait_for()
    page.id("lane-filter").fill("/^RANK 0$/i")
    page.tab.wait_for_function("() => document.querySelector('[data-testid=filter-count]').textContent === ''")
    page.id("lane-filter").fill("")
    page.tab.wait_for_function("() => document.querySelectorAll('.tl-name[data-kind=python]').length > 0")
    assert page.find("gemm") == "1 of 16"
    page.id("search").focus()
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_function("() => document.querySelector('[data-testid=search-count]').textContent === '2 of 16'")
    for said in ("1 of 16", "16 of 16"):  # around the end
        page.tab.keyboard.press("Shift+Enter")
        page.tab.wait_for_function(
            "(said) => document.querySelector('[data-testid=search-count]').textContent === said", arg=said
        )
    page.check()


def test_a_run_that_is_not_there_leaves_the_chooser(opened: Opener, tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        events = [{**each, "ts": each["ts"] + 5e6 * number} for each in small_step(number=number)]
        content = trace(events, rank=0, rankscope={"schema_version": 1, "run_id": f"{name}-id"})
        write(tmp_path / "runs" / name / "rank0.json", content)
    page = opened(tmp_path / "runs")
    page.ready()
    page.tab.goto(page.tab.url.split("#")[0] + "#/overview?run=000000000000")
    page.id("error-state").wait_for()
    assert "not in this directory" in str(page.id("error-state").text_content())
    chooser = page.tab.locator("[data-testid=run]")
    assert chooser.evaluate("(e) => e.selectedOptions[0].label") == "Choose a run …"
    page.said.clear()  # the browser notes the 404, and the page says it
    page.check(axe=True)
    chooser.select_option(index=1)
    page.tab.wait_for_selector("[data-testid=error-state]", state="detached")
    page.ready()
    page.tab.wait_for_function(
        "() => document.querySelector('[data-testid=run]').selectedOptions[0].label.includes('first')"
    )
    page.check(axe=True)


def test_the_critical_path_of_the_step_in_view(opened: Opener, late: Path) -> None:
    """Rank 1 is late to step 14's collective: the path across ranks is on it, and the toggle and the link show it."""
    page = opened(late, width=1440)
    page.ready()
    page.go("critical_path?step=14")
    page.id("path-events").click()
    page.tab.wait_for_selector('[data-testid="path"][data-step="14"]')
    shown = page.id("path")
    assert shown.get_attribute("data-ranks") == "1"
    assert "path=all" in page.tab.url
    page.tab.locator("#path-of").select_option("0")
    page.tab.wait_for_selector('[data-testid="path"][data-ranks="0"]')
    page.tab.wait_for_function("() => location.hash.includes('path=0')")
    # The path of the step that comes into view takes its place.
    page.tab.keyboard.press("}")
    page.tab.wait_for_selector('[data-testid="path"][data-step="15"]')
    page.tab.keyboard.press("c")
    page.tab.wait_for_selector('[data-testid="path"]', state="hidden")
    page.tab.wait_for_function("() => !location.hash.includes('path=')")
    page.id("path-toggle").click()
    page.tab.wait_for_selector('[data-testid="path"][data-step="15"]')
    assert page.id("path-toggle").get_attribute("aria-pressed") == "true"
    page.check()


def test_an_operators_kernels_its_backward_and_back(opened: Opener, tmp_path: Path) -> None:
    events = [
        step(1, 0, 400),
        op("aten::mm", 10, 40, **{"Sequence number": 5, "Fwd thread id": 0}),
        launch(20, 5, correlation=1),
        kernel("gemm", 60, 30, correlation=1),
        op("MmBackward0", 200, 40, tid=9, **{"Sequence number": 5, "Fwd thread id": 1}),
        launch(210, 5, correlation=2, tid=9),
        kernel("dgrad", 250, 20, correlation=2),
    ]
    page = opened(write(tmp_path / "rank0.json", trace(events, rank=0)))
    page.ready()
    page.timeline("?name=aten%3A%3Amm")
    assert page.selected()["name"] == "aten::mm"
    launched = page.id("kernels")
    assert (launched.get_attribute("data-count"), launched.get_attribute("data-total")) == ("1", "30000")
    page.tab.locator(".tl-facts button", has_text="MmBackward0").click()
    page.selects("name", "MmBackward0")
    page.id("kernels").locator("button").click()
    page.selects("name", "dgrad")
    page.tab.go_back()
    page.selects("name", "MmBackward0")
    page.tab.locator(".tl-facts button", has_text="aten::mm").click()
    page.selects("name", "aten::mm")
    page.check()
