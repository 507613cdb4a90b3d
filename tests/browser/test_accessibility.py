"""The keyboard alone, screen-reader names and reduced motion, in the views beside the timeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]
ACROSS = ("overview", "run", "ranks", "stragglers", "distributed", "collectives", "steps", "critical_path", "phases")
WITHIN = ("data_loading", "idle", "operators", "kernels", "modules", "memory", "scaling", "diff")
VIEWS = (*ACROSS, *WITHIN)
TIMELINES = (
    "timeline",
    "timeline?rank=1&step=14&calls=flame_operators_1_0",
    "timeline?step=14&calls=tree_operators_all&path=all",
)

# What can be used with a pointer: each must get the focus by Tab, look focused, and have a name. Of a list of tabs that
# is the chosen one, from which arrow keys go to the others.
TARGETS = """() => {
  const all = [...document.querySelectorAll('#main :is(a[href], button, select, input, summary, [tabindex="0"])')];
  window.targets = all.filter((e) => e.checkVisibility() && e.getClientRects().length > 0 && !e.closest('tbody')
    && !e.matches('[role=tab][aria-selected=false]'));
  document.querySelector('#main').focus();
  return window.targets.length;
}"""
FOCUSED = """() => {
  const focused = document.activeElement;
  const style = getComputedStyle(focused);
  const label = focused.labels?.[0]?.textContent ?? '';
  return {
    target: window.targets.indexOf(focused), inside: document.querySelector('#main').contains(focused),
    outline: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
    name: (focused.getAttribute('aria-label') ?? (label || focused.textContent || focused.title)).trim(),
    what: focused.outerHTML.slice(0, 120),
  };
}"""
DRAWN = "() => [...document.querySelectorAll('#main .chart')].every((chart) => chart.dataset.drawn === 'true')"


def shown(page: Page, view: str) -> None:
    page.go(view)
    page.tab.wait_for_selector(f'[data-testid="nav-{view}"][aria-current=page]', state="attached")
    page.tab.wait_for_selector("#main [data-testid=working]", state="detached")
    page.tab.wait_for_function(DRAWN)


def missed_by_keys(page: Page) -> list[str]:
    """What can be used with a pointer and gets no focus by Tab."""
    page.paused(600)  # what the server still sends is drawn
    count = page.tab.evaluate(TARGETS)
    reached: set[int] = set()
    for _ in range(4 * count + 100):
        page.tab.keyboard.press("Tab")
        focused = page.tab.evaluate(FOCUSED)
        if not focused["inside"]:
            break
        assert focused["outline"], focused["what"]
        assert focused["name"], focused["what"]
        reached.add(focused["target"])
    missed: list[str] = page.tab.evaluate(
        "(reached) => window.targets.filter((e, at) => e.isConnected && !reached.includes(at))"
        ".map((e) => e.outerHTML.slice(0, 120))",
        sorted(reached),
    )
    return missed


def test_the_keyboard_alone_reaches_everything(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    for view in VIEWS:
        shown(page, view)
        assert not missed_by_keys(page), view
    for place in TIMELINES:
        page.timeline(place.removeprefix("timeline"))
        page.press("e")
        page.id("selection").wait_for()
        assert not missed_by_keys(page), place


def test_a_bar_is_chosen_and_opened_by_keys(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    shown(page, "ranks")
    chart = page.id("chart-device-time")
    chart.focus()
    page.tab.keyboard.press("ArrowDown")
    page.tab.keyboard.press("ArrowDown")
    said = str(page.id("chart-device-time-readout").text_content())
    assert said.startswith("Rank 1: Compute ")
    cells = "[data-testid=table-device_time] tr[data-row] td[data-column={}]"
    ranks, compute = (page.tab.locator(cells.format(name)).all_text_contents() for name in ("rank", "compute_ns"))
    assert f"Compute {dict(zip(ranks, compute, strict=True))['1']}," in said
    page.tab.keyboard.press("Enter")
    page.settled()
    assert page.id("rank-1").get_attribute("aria-expanded") == "true"


def test_the_accessibility_tree_has_names_and_roles(opened: Opener, late: Path) -> None:
    page = opened(late)
    page.ready()
    shown(page, "ranks")
    tree = page.tab.locator("body").aria_snapshot()
    for wanted in (
        'link "Skip to content"',
        'navigation "Views"',
        'heading "Ranks" [level=2]',
        'combobox "Show:"',
        'application "Device time by rank, entire recording. Stacked bars',
        'button "Download CSV"',
        'table "Where each rank',
        'columnheader "Compute"',
        'rowheader "1"',
        'searchbox "Filter the rows of Where each rank',
    ):
        assert wanted in tree, (wanted, tree)
    page.check(axe=True)


INTERACTIVE = """
    application button Canvas checkbox combobox dialog DisclosureTriangle gridcell img link menuitem option radio
    searchbox slider spinbutton tab table tabpanel textbox treeitem
"""


def nameless(page: Page) -> list[str]:
    """What can be used, or reached with Tab, and has no name in the browser's own accessibility tree."""
    session = page.tab.context.new_cdp_session(page.tab)
    found = []
    for node in session.send("Accessibility.getFullAXTree")["nodes"]:
        if node.get("ignored") or node.get("name", {}).get("value", "").strip():
            continue
        focusable = any(each["name"] == "focusable" for each in node.get("properties", []))
        if "backendDOMNodeId" not in node or not (focusable or node["role"]["value"] in INTERACTIVE.split()):
            continue
        about = session.send("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})["node"]
        attributes = about.get("attributes", [])
        by_tab = dict(zip(attributes[::2], attributes[1::2], strict=True)).get("tabindex") == "0"
        if node["role"]["value"] in INTERACTIVE.split() or by_tab:
            found.append(f"{node['role']['value']}: {about['nodeName']} {attributes}")
    session.detach()
    return found


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_that_can_be_used_is_nameless(opened: Opener, late: Path, width: int) -> None:
    page = opened(late, width=width)
    page.ready()
    for place in (*VIEWS, *TIMELINES):
        page.go(place)
        if place in TIMELINES:
            page.settled()
            page.press("e")
            page.id("selection").wait_for()
        else:
            shown(page, place)
        page.tab.evaluate("() => document.querySelectorAll('#main details').forEach((each) => { each.open = true; })")
        page.paused(600)
        assert nameless(page) == [], place


MOVING = """() => [...document.querySelectorAll('*')].filter((e) => {
  const style = getComputedStyle(e);
  const long = (text) => text.split(',').some((each) => parseFloat(each) > 0);
  return (style.animationName !== 'none' && long(style.animationDuration)) || long(style.transitionDuration);
}).map((e) => e.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize("view", ["overview", "timeline"])
def test_nothing_moves_where_motion_is_reduced(opened: Opener, late: Path, view: str) -> None:
    page: Any = opened(late)  # asks for reduced motion
    page.ready()
    if view == "timeline":
        page.timeline()
    else:
        shown(page, view)
    assert page.tab.evaluate("() => matchMedia('(prefers-reduced-motion: reduce)').matches")
    assert page.tab.evaluate(MOVING) == []
