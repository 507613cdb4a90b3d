"""A run that grows while its page is open: the new rank appears, and the view stays where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page
from tests.kineto import small_step, trace, write

pytestmark = pytest.mark.browser


def window(folder: Path, rank: int, number: int) -> None:
    events = [{**each, "ts": each["ts"] + 10_000.0 * number} for each in small_step(number=10 + number)]
    aside = folder / f".rank{rank}.tmp"
    write(aside, trace(events, rank=rank, world_size=3))
    aside.rename(folder / f"rank{rank}_iter{10 + number}_{10 + number}.trace.json")


def test_a_new_rank_and_window_appear_and_the_view_stays(
    tmp_path: Path, browser: Any, serve: Callable[[Path], str]
) -> None:
    window(tmp_path, 1, 0)
    window(tmp_path, 2, 0)
    page = Page(browser, serve(tmp_path), width=1280)
    try:
        page.ready()
        page.go("overview")
        page.tab.wait_for_selector('[data-testid="headline-step-time"]')
        page.timeline("?rank=2")
        page.find("gemm")
        chosen = page.selected()
        page.press("f")
        page.still()
        shown = page.tab.url.split("t=")[1].split("&")[0]
        window(tmp_path, 0, 0)
        page.tab.wait_for_selector('[data-testid="rank-0"]')
        page.settled()
        again = page.selected()
        assert {key: again[key] for key in ("name", "start", "end", "row")} == {
            key: chosen[key] for key in ("name", "start", "end", "row")
        }
        assert page.tab.url.split("t=")[1].split("&")[0] == shown
        assert page.id("rank-2").get_attribute("aria-expanded") == "true"
        window(tmp_path, 2, 1)
        page.tab.wait_for_function(
            "() => [...document.querySelectorAll('.tl-bar option')].some((each) => /11/.test(each.textContent))",
        )
        assert page.tab.url.split("t=")[1].split("&")[0] == shown
        page.go("overview")
        page.tab.wait_for_selector('[data-testid="headline-step-time"]')
        page.check()
    finally:
        page.close()
