"""The waterfall and the What-if view: their numbers are those of `rankscope whatif`, served and in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import kineto
from tests.analyses.test_whatif import events
from tests.browser.page import Page

import rankscope
from rankscope.show.report.html_report import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 of three loads 100 µs longer, in steps of 300 µs."""
    folder = tmp_path_factory.mktemp("whatif") / "run"
    return kineto.write_ranks(folder, {rank: events(100 if rank == 1 else 0, steps=12) for rank in range(3)})


@pytest.fixture(scope="module")
def unexplained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels start later and later after their launch, for no recorded reason."""
    made: list[kineto.Event] = []
    for number in range(3):
        at, one = 300 * number, number + 1
        made += [kineto.step(one, at, 20), kineto.launch(at + 5, 5, correlation=one)]
        made += [kineto.kernel("gemm", at + 10 + 240 * number, 20, correlation=one)]
    return kineto.write_ranks(tmp_path_factory.mktemp("whatif") / "unexplained", {0: made})


@pytest.fixture
def saved(browser: Any, loading: Path, tmp_path: Path) -> Iterator[Page]:
    file = tmp_path / "report.html"
    file.write_bytes(write_report(rankscope.open(loading, executor="serial")))
    page = Page(browser, file.as_uri(), offline=True)
    yield page
    page.close()


def predicted(page: Page, command: str) -> int:
    """The step time that is shown for a command."""
    page.tab.wait_for_function(
        "(text) => document.querySelector('[data-testid=whatif-command]')?.textContent === text"
        " && !document.querySelector('.whatif-picture[aria-busy]')",
        arg=f"rankscope whatif RUN {command}",
    )
    return int(page.id("whatif-step").get_attribute("data-value") or -1)


def alone(folder: Path, **options: Any) -> int:
    return int(rankscope.open(folder, executor="serial").whatif(**options)["step_ns"][-1])


def test_the_waterfall_is_that_of_the_command(opened: Callable[..., Page], loading: Path) -> None:
    page = opened(loading)
    page.ready()
    page.go("overview")
    bars = page.tab.locator("[data-testid=waterfall] > li")
    bars.first.wait_for()
    frame = rankscope.open(loading, executor="serial").whatif()
    placed = frame.filter(frame["order"] > 0).sort("order")
    shown = [float(bar.get_attribute("data-value")) for bar in bars.all()]
    assert shown[0] == frame["alone_ns"][0]
    assert shown[-1] == placed["step_ns"][-1]
    assert shown[1:-1] == placed["gain_ns"].to_list()
    assert placed["scenario"][0] == "rank 1 like its peers"
    page.id("waterfall-finding").click()
    assert page.tab.evaluate("document.activeElement.dataset.finding") == "straggler"
    page.id("waterfall-change").click()
    page.tab.wait_for_selector("[data-testid=nav-whatif][aria-current=page]")
    assert predicted(page, "--fix rank=1") == alone(loading, fix="rank=1")
    page.check()


def test_switches_give_what_the_command_gives(opened: Callable[..., Page], loading: Path) -> None:
    page = opened(loading)
    page.ready()
    page.go("whatif")
    page.id("whatif-rank-1").click()
    assert predicted(page, "--fix rank=1") == alone(loading, fix="rank=1")
    page.id("whatif-component").select_option("data_loading")
    assert predicted(page, "--fix rank=1:data_loading") == alone(loading, fix="rank=1:data_loading")
    page.tab.locator("[data-option='--overlap']").check()
    both = alone(loading, fix="rank=1:data_loading", overlap=True)
    assert predicted(page, "--fix rank=1:data_loading --overlap") == both
    page.id("whatif-network").select_option("4")
    assert predicted(page, "--fix rank=1:data_loading --network 4x --overlap") <= both
    # The picture ends where its step ends, and marks the rank.
    recorded, replayed = (int(page.id(name).get_attribute("data-value")) for name in ("step-recorded", "step-replayed"))
    assert recorded - replayed == pytest.approx(100_000, abs=60_000)
    assert page.tab.locator(".step-row.marked").first.get_attribute("data-rank") == "1"
    page.tab.locator("[data-testid=step-recorded] .piece[data-what='waits for the last rank']").first.hover()
    assert "waits for the last rank" in page.tab.locator(".step-tip").inner_text()
    page.tab.go_back()
    assert predicted(page, "--fix rank=1:data_loading --overlap") == both
    page.id("whatif-reset").click()
    page.tab.wait_for_selector("[data-testid=whatif-command]", state="detached")
    page.check()


def test_a_report_answers_single_changes_and_the_waterfall(saved: Page, loading: Path) -> None:
    page = saved
    page.go("whatif?with=--fix rank=1")
    assert predicted(page, "--fix rank=1") == alone(loading, fix="rank=1")
    page.go("whatif?with=--no-copies")
    assert predicted(page, "--no-copies") == alone(loading, no_copies=True)
    page.go("whatif?with=--fix rank=0 --network 4x")
    assert predicted(page, "--fix rank=0 --network 4x") == -1
    assert "rankscope serve RUN" in page.id("whatif-outcome").inner_text()
    assert page.tab.locator("[data-testid=step-recorded]").count() == 1
    assert page.tab.locator("[data-testid=step-replayed]").count() == 0  # none that is of other changes
    page.check()


def test_what_the_replay_does_not_explain_is_not_judged(opened: Callable[..., Page], unexplained: Path) -> None:
    page = opened(unexplained)
    page.ready()
    page.go("overview")
    said = page.id("waterfall-not-judged")
    said.wait_for()
    explained = rankscope.open(unexplained, executor="serial").whatif()["explained"][0]
    assert float(said.get_attribute("data-value")) == pytest.approx(explained)
    assert "not judged" in said.inner_text()
    assert page.tab.locator("[data-testid=waterfall]").count() == 0
    page.go("whatif")
    page.id("step-replayed").wait_for()
    assert page.id("whatif-step").inner_text() == "Not judged"
    assert page.tab.locator(".whatif-switches fieldset").count() == 0
    page.check()


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_it_is_accessible(opened: Callable[..., Page], loading: Path, width: int, dark: bool) -> None:
    page = opened(loading, width=width, dark=dark)
    page.ready()
    page.go("whatif?with=--fix rank=1")
    predicted(page, "--fix rank=1")
    page.check(axe=True)
