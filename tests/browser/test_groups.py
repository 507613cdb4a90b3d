"""Ranks in groups in the timeline: a closed group shows the ranks with extreme values, and opens."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page

pytestmark = pytest.mark.browser

SHAPE = "--ranks 16 --steps 3 --mesh dp=8,pp=2 --layers 1 --kernels-per-layer 2 --microbatches 2"
SLOW = 5


@pytest.fixture(scope="session")
def meshed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meshed") / "run"
    fault = f"slow_device:rank={SLOW},magnitude=0.5"
    command = [sys.executable, "-m", "rankscope", "simulate", str(folder), *SHAPE.split(), "--fault", fault]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def shown_ranks(page: Page) -> list[int]:
    """The ranks that have rows, from the top."""
    names = page.tab.locator(".tl-gutter button[data-row^=r]").all()
    found = [(name.bounding_box()["y"], int(name.get_attribute("data-row")[1:])) for name in names]
    return [rank for _, rank in sorted(found)]


def waited_of(heat: dict[str, Any], rank: int) -> float:
    """The mean over steps of what others waited for a rank."""
    count = len(heat["steps"])
    at = heat["ranks"].index(rank) * count
    known = [value for value in heat["waited_ns"][at : at + count] if value is not None]
    return sum(known) / len(known)


def test_groups_of_pipeline_stages_open_and_are_in_the_link(opened: Callable[..., Page], meshed: Path) -> None:
    page = opened(meshed)
    page.ready()
    page.timeline()
    assert shown_ranks(page) == list(range(16))
    page.id("view-menu").locator("summary").click()
    page.tab.select_option("#tl-group-by", "pp")
    page.tab.keyboard.press("Escape")
    page.id("group-1").wait_for()
    page.id(f"rank-{SLOW}").wait_for()
    assert page.id(f"rank-{SLOW}").get_attribute("title").endswith("has a warning")
    ranks = shown_ranks(page)
    stages = [rank % 2 for rank in ranks]
    assert stages == sorted(stages) and 3 <= stages.count(0) < 8 and 3 <= stages.count(1) < 8
    title = page.id("group-1").get_attribute("title")
    named = [int(part) for part in re.findall(r"\(rank (\d+)\)", title)]
    assert named == ranks[stages.count(0) :][:3], title  # the greatest, the median and the least
    heat = page.tab.evaluate("async () => (await fetch('api/heat')).json()")
    waits = {rank: waited_of(heat, rank) for rank in range(1, 16, 2)}
    assert waits[named[0]] == max(waits.values()) > 0 and waits[named[2]] == min(waits.values())
    page.check(axe=True)
    page.id("group-1").focus()
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_function(
        "() => document.querySelectorAll('.tl-gutter button[data-row^=r]').length === 8 + " + str(stages.count(0))
    )
    assert page.id("group-1").get_attribute("aria-expanded") == "true"
    assert page.tab.evaluate("document.activeElement.dataset.row") == "g1"
    assert shown_ranks(page)[stages.count(0) :] == [1, 3, 5, 7, 9, 11, 13, 15]
    page.still()
    link = page.tab.evaluate("location.hash")
    assert "group=pp" in link and "groups=1" in link
    # From a closed group, a jump shows the rank.
    page.timeline("?group=pp&rank=12")
    page.tab.wait_for_function("() => document.querySelector('[data-testid=rank-12]')?.ariaExpanded === 'true'")
    page.check()


@pytest.mark.slow
def test_many_ranks_are_grouped_at_first_and_the_straggler_is_pinned(
    opened: Callable[..., Page], ranks258: Path
) -> None:
    page = opened(ranks258)
    page.ready()
    page.timeline()
    pinned = page.tab.locator(".tl-pins [data-testid=rank-77]")
    pinned.wait_for()
    assert page.tab.locator(".tl-gutter [data-testid^=group-]").count() == 6  # the fewest: tp, not dp
    page.id("view-menu").locator("summary").click()
    assert page.tab.locator("#tl-group-by").input_value() == "tp"
    assert page.id("view-menu").get_by_text("More than 256 ranks are grouped at first").is_visible()
    page.tab.select_option("#tl-group-by", "")
    page.tab.keyboard.press("Escape")
    page.tab.wait_for_function("() => !document.querySelector('[data-testid^=group-]')")
    page.still()
    assert "group=none" in page.tab.evaluate("location.hash")
    # Neither comes back by itself, also not after a reload.
    pinned.focus()
    page.tab.keyboard.press("p")
    pinned.wait_for(state="detached")
    page.still()
    assert "pin=none" in page.tab.evaluate("location.hash")
    page.tab.reload()
    page.ready()
    page.settled()
    assert page.tab.locator("[data-testid^=group-], .tl-pins [data-row]").count() == 0
    page.check()
