"""The calls of a measured range: what the server added up, by pointer and by keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.browser.page import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_why_a_rank_was_late(opened: Callable[..., Page], gloo: Path) -> None:
    page = opened(gloo)
    page.ready()
    page.timeline("?rank=1&step=2&calls=tree_operators_1_0")
    page.id("call-tree").wait_for()
    late = page.id("call-tree").locator("tr[data-name=slow_dataloader]")
    total, own, calls, more, _ = (late.locator("td[data-value]").nth(at).get_attribute("data-value") for at in range(5))
    # Rank 0 has no such range: all its time is the difference.
    assert float(total) == float(own) == float(more) > 25_000_000
    assert calls == "1"
    page.id("range-flame").click()
    page.id("flame").focus()
    page.id("flame").press("ArrowDown")
    assert "slow_dataloader: total" in page.id("flame-line").inner_text()
    page.id("flame").press("Enter")
    page.id("calls-all").wait_for()
    focused = page.tab.url
    # The link has the focus, and Back goes from call to call.
    page.id("calls-all").click()
    page.id("calls-all").wait_for(state="detached")
    page.tab.go_back()
    page.id("calls-all").wait_for()
    assert page.tab.url == focused
    page.tab.reload()
    page.id("calls-all").wait_for()
    page.id("calls-invert").click()
    page.id("calls-all").wait_for(state="detached")
    page.id("calls-search").fill("slow_")
    page.still()
    assert "calls=flame_operators_1_0_i__slow_" in page.tab.url
    page.check(axe=True)
    page.tab.reload()
    page.id("calls-search").wait_for()
    assert page.id("calls-search").input_value() == "slow_"
    assert page.id("calls-invert").get_attribute("aria-pressed") == "true"
