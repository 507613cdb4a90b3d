"""A watched job on the page while it runs: the straggler is named, new steps appear, and a hang."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.answers.watch.jobs import MS, SimulatedJob
from tests.browser.page import Page
from tests.kineto import small_step, trace, write

from rankscope.rundir.hang_dump import DUMP_FORMAT, Frame, HangDump, ThreadStack

pytestmark = pytest.mark.browser


def slow(rank: int, _step: int, place: str) -> int:
    return 40 * MS if rank == 1 and place == "backward" else 0


def test_the_page_follows_a_watched_job(tmp_path: Path, browser: Any, serve: Callable[[Path], str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run / "rank0_iter10_10.trace.json", trace(small_step(number=10), rank=0, world_size=2))
    SimulatedJob(ranks=2, slow=slow).write(run)
    page = Page(browser, serve(run), width=390)
    try:
        page.ready()
        # The overview has the log's verdict, as the traces' diagnosis.
        page.tab.get_by_text("Rank 1 delays the other ranks").first.wait_for()
        page.go("watch")
        page.tab.wait_for_selector('[data-testid="chart-watch"][data-drawn="true"]')
        assert page.id("watch-straggler-value").inner_text() == "Rank 1"
        assert page.id("watch-state-value").inner_text() == "Step 59"
        assert page.id("watch-hang-value").inner_text() == "None"
        rows = page.id("watch-table-ranks").locator("tbody tr").all_inner_texts()
        assert len(rows) == 2
        assert rows[0].startswith("1\trunning\t59")
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390
        # A step, and a hang, without a reload.
        with (run / "watch" / "rank0.jsonl").open("a") as file:
            file.write('{"step":60,"start_ns":1,"ns":1000}\n')
        page.tab.wait_for_function(
            "() => document.querySelector('[data-testid=watch-state-value]').textContent === 'Step 60'"
        )
        stack = ThreadStack((Frame("/job/train.py", 19, "<b>main"),), "MainThread", 1, training=True)
        dump = HangDump(DUMP_FORMAT, 1, time_ns=4 * 10**18, world_size=2, reason="no step", threads=(stack,))
        (run / "hang").mkdir()
        (run / "hang" / "rank1.json").write_text(dump.to_json())
        page.tab.wait_for_selector('[data-testid="watch-hang"]')
        assert "<b>main" in page.id("watch-hang").inner_text()
        assert page.id("watch-hang-value").inner_text() == "Hanging"
    finally:
        page.close()


def test_a_watched_job_without_traces_is_shown_by_its_log(
    tmp_path: Path, browser: Any, serve: Callable[..., str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    SimulatedJob(ranks=2, slow=slow).write(run)
    page = Page(browser, serve(run, "--follow"), width=1280)
    try:
        page.tab.wait_for_selector('[data-testid="chart-watch"][data-drawn="true"]')
        assert page.id("watch-straggler-value").inner_text() == "Rank 1"
        write(run / "rank0_iter10_10.trace.json", trace(small_step(number=10), rank=0, world_size=2))
        page.tab.wait_for_selector('[data-testid="nav-kernels"]')
        # It stays what is read; the overview is a click away.
        assert page.id("watch-straggler-value").inner_text() == "Rank 1"
        page.id("nav-overview").click()
        page.tab.wait_for_selector('[data-testid="headline-step-time"]')
    finally:
        page.close()
