"""`rankscope report` in a browser without a network: timeline and views from one file, its numbers the run's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import WAIT_MS, Page
from tests.show.report.reading import inflated, read_report
from tests.statements.quantities import contradictions, digits, gather, read

import rankscope
from rankscope.engine.pipeline.clock import clock_of, in_run_time
from rankscope.show.export.formats import to_json
from rankscope.show.report.embed.timeline import size_of
from rankscope.show.report.html_report import write_report
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.event_details import details
from rankscope.show.timeline.search import Query, Search

pytestmark = pytest.mark.browser

Opener = Callable[..., Page]
BY_PLACE = ("host", "collectives", "counters", "details")


@pytest.fixture
def opened(browser: Any) -> Iterator[Opener]:
    pages: list[Page] = []

    def start(file: Path, **options: Any) -> Page:
        pages.append(Page(browser, file.as_uri(), offline=True, **options))
        return pages[-1]

    yield start
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def cache(session_cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(session_cache))
        yield


@pytest.fixture(scope="module")
def h100(shared_traces: Path, cache: None) -> rankscope.Run:
    return rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")


@pytest.fixture(scope="module")
def gloo(shared_traces: Path, cache: None, tmp_path_factory: pytest.TempPathFactory) -> rankscope.Run:
    """Two ranks on CPU, one of which sleeps in its loader."""
    folder = tmp_path_factory.mktemp("gloo") / "straggler"
    folder.mkdir()
    for rank in (0, 1):
        name = f"ddp_gpt_straggler_rank1.rank{rank}.json.gz"
        (folder / name).symlink_to(shared_traces / "gloo-2ranks" / name)
    return rankscope.open(folder, executor="serial")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[rankscope.Run], Path]:
    written: dict[int, Path] = {}

    def of(run: rankscope.Run) -> Path:
        if id(run) not in written:
            file = tmp_path_factory.mktemp("report") / "report.html"
            file.write_bytes(write_report(run))
            written[id(run)] = file
        return written[id(run)]

    return of


@pytest.mark.parametrize(("which", "width", "height", "dark"), [("h100", 1280, 900, False), ("gloo", 390, 844, True)])
def test_every_view_of_the_file(
    opened: Opener, files: Any, request: pytest.FixtureRequest, which: str, width: int, height: int, dark: bool
) -> None:  # fmt: skip
    run = request.getfixturevalue(which)
    page = opened(files(run), width=width, height=height, dark=dark)
    views = page.tab.evaluate(
        "() => [...document.querySelectorAll('[data-testid^=nav-]')].map((link) => link.dataset.testid.slice(4))"
    )
    assert {"overview", "timeline", "ranks", "steps", "collectives"} <= {*views}
    for view in views:
        page.go(view)
        page.tab.wait_for_selector(f'[data-testid="nav-{view}"][aria-current=page]', state="attached")
        if view == "timeline":
            page.settled()
            assert page.ink() > 20
            said = str(page.id("left-out").text_content())
            assert "Arguments, shapes and stacks of all but the longest events" in said
        page.check(axe=True)


def test_numbers_are_those_of_analyze(opened: Opener, files: Any, h100: rankscope.Run) -> None:
    page = opened(files(h100))
    overview = h100.overview().row(0, named=True)
    assert page.id("headline-step-time").get_attribute("data-value") == str(overview["step_ns"])
    compared = 0
    for view in ("ranks", "steps", "kernels"):
        page.go(view)
        page.tab.wait_for_selector(f'[data-testid="nav-{view}"][aria-current=page]', state="attached")
        page.tab.wait_for_selector("main [data-testid=working]", state="detached")
        shown = page.tab.evaluate(
            """() => [...document.querySelectorAll('table[data-testid^="table-"]')].map((table) => [
                table.dataset.testid.slice(6), [...table.querySelectorAll('tr[data-row]')].slice(0, 50).map((row) => [
                  Number(row.dataset.row), Object.fromEntries([...row.querySelectorAll('td[data-column]')]
                    .map((td) => [td.dataset.column, [td.dataset.value, td.innerText]]))])])"""
        )
        for name, rows in shown:
            expected = json.loads(to_json(in_run_time(h100.analyze(name)[name], clock_of(h100)), h100.about()))["rows"]
            for row, cells in rows:
                for column, (text, rendered) in cells.items():
                    wanted = expected[row][column]
                    if column.endswith("_ns") and not column.startswith(("start", "end", "launch")):
                        assert (None if text == "" else float(text)) == wanted, (name, row, column)
                        if wanted is not None:
                            low, high = digits(" ".join(rendered.split()))
                            assert low <= wanted <= high, (name, row, column, rendered)
                        compared += 1
    assert compared > 100


def test_the_overview_contradicts_no_other_place(opened: Opener, files: Any, h100: rankscope.Run) -> None:
    """What a reader sees on the page, and what the summary, the findings, the tables, JSON and SQL say."""
    page = opened(files(h100))
    page.tab.wait_for_selector('[data-testid="headline-step-time"]')
    cards = page.tab.evaluate(
        """() => [...document.querySelectorAll('main .card')].map((card) =>
             [card.querySelector('h3').innerText, ...[...card.querySelectorAll('p')].map((p) => p.innerText)])"""
    )
    texts = [f"{title}: {value}. {sentence}" for title, value, sentence in cards]
    texts += str(page.tab.inner_text("main")).splitlines()
    shown = [number for text in texts for number in read(" ".join(text.split()), "page as rendered", "page")]
    known = {number.quantity for number in shown if not number.about}
    assert {"step_ns", "overlap_ratio", "exposed_communication_ns", "mean_step_ns"} <= known
    found = contradictions([*gather(h100), *(number for number in shown if not number.about)])
    assert not found, "\n".join(f"{low}\n  but {high}" for low, high in found)


def test_events_of_the_file_are_those_of_the_traces(opened: Opener, files: Any, h100: rankscope.Run) -> None:
    timeline = draw_run(h100, clock_of(h100))
    collectives = h100.collectives()
    search = Search(timeline)
    page = opened(files(h100))
    page.timeline("?rank=0&step=11")
    said = page.find("DevKernel_AllGather")
    assert said.endswith(f"of {search.hits(Query('DevKernel_AllGather')).start.size:,}")
    found = page.selected()
    wanted = details(timeline, int(found["lane"]), int(found["row"]), collectives)
    assert wanted is not None
    assert (found["name"], float(found["start"]), float(found["end"])) == (
        wanted["name"], wanted["start_ns"], wanted["end_ns"],
    )  # fmt: skip
    members = wanted["collective"]["members"]
    assert len(members) == 8
    # It is among the longest: all that is known of it is in the file.
    arguments = page.tab.locator(".tl-args dt").all_text_contents()
    assert set(arguments) == set(list(wanted["args"])[:40])
    other = next(member for member in members if member["rank"] == 5)
    page.id("member-5").click()
    page.selects("lane", str(other["lane"]))
    followed = page.selected()
    assert (int(followed["row"]), float(followed["start"])) == (other["row"], other["start_ns"])
    launched = page.tab.get_by_text("Launched by").locator("xpath=following-sibling::dd//button")
    again = details(timeline, other["lane"], other["row"], collectives)
    assert again is not None
    launched.click()
    page.selects("lane", str(again["launch"]["lane"]))
    assert float(page.selected()["start"]) == again["launch"]["start_ns"]
    page.check(axe=True)


def test_measuring_zooming_and_counters_from_the_file(opened: Opener, files: Any, h100: rankscope.Run) -> None:
    page = opened(files(h100))
    page.timeline("?rank=2&step=12")
    page.press("m")
    page.id("measure").wait_for()
    low, high = (int(page.id("measure").get_attribute(f"data-{end}") or "0") for end in ("from", "to"))
    rows = page.tab.evaluate(
        """() => [...document.querySelectorAll('[data-testid=table-measured] tr[data-row]')].map((row) =>
             Object.fromEntries([...row.querySelectorAll('td')].map((td) => [td.dataset.column, td.dataset.value])))"""
    )
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(8)]
    # By hand, from the tables: rank 2's computing kernels within the window, their union.
    clock = clock_of(h100).ranks[2]
    trace = h100.loaded.ranks[2][0]
    kernels = trace.load("device_events", ["start_ns", "end_ns", "kind", "is_collective", "name"])
    kernels = kernels.filter((kernels["kind"] == "kernel") & ~kernels["name"].str.contains("(?i)nccl"))
    spans = zip(
        clock.run_time(0, kernels["start_ns"].to_numpy()), clock.run_time(0, kernels["end_ns"].to_numpy()), strict=True
    )
    total, reached = 0, low
    for start, end in sorted((int(start), int(end)) for start, end in spans):
        total += max(0, min(end, high) - max(start, reached))
        reached = max(reached, min(end, high))
    assert float(rows[2]["compute_ns"]) == total > 0
    before = page.tab.evaluate("() => document.querySelector('.tl-pixels').toDataURL()")
    page.press("w", "w", "w")
    page.settled()
    assert page.tab.evaluate("() => document.querySelector('.tl-pixels').toDataURL()") != before
    page.check()
    page.go("overview")
    heat = page.id("heat")
    heat.wait_for()
    assert heat.get_attribute("data-rows") == "8"
    page.check()


def test_a_link_into_the_file_leads_to_the_same_view(opened: Opener, files: Any, gloo: rankscope.Run) -> None:
    page = opened(files(gloo))
    page.timeline("?rank=1&step=2")
    page.find("all_reduce")
    chosen = page.selected()
    page.press("f")
    page.still()
    other = opened(files(gloo))
    other.tab.goto(page.tab.url)
    other.tab.reload()
    other.tab.wait_for_selector("#app[data-ready=true]")
    other.settled()
    assert other.selected() == chosen
    other.check()


def test_a_file_cut_short_says_so(browser: Any, files: Any, gloo: rankscope.Run, tmp_path: Path) -> None:
    whole = files(gloo).read_bytes()
    at = whole.index(b'data-rankscope="timeline">')
    broken = tmp_path / "cut.html"
    # The head of the timeline loses its end, the page around it stays.
    broken.write_bytes(whole[: at + 400] + whole[whole.index(b"</script>", at) :])
    tab = browser.new_page()
    tab.set_default_timeout(WAIT_MS)
    tab.goto(broken.as_uri())
    tab.wait_for_selector("#app[data-ready=error]")
    assert "A part of this report cannot be read (timeline" in str(tab.locator("#app").text_content())
    tab.close()


def test_a_file_of_many_ranks_says_what_it_leaves_to_the_server(opened: Opener, cache: None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    small = (
        "--ranks 64 --steps 2 --layers 1 --kernels-per-layer 2 --microbatches 1 --fault slow_device:rank=45,magnitude=2"
    )
    command = [sys.executable, "-m", "rankscope", "simulate", str(folder), *small.split()]
    subprocess.run(command, check=True, capture_output=True)
    run = rankscope.open(folder, executor="serial")
    # Without room for counters, and for the host's side of the ranks that matter least.
    whole = write_report(run)
    _, blocks = read_report(whole)
    of = {stage: sum(map(size_of, (blocks[name] for name in blocks if name.startswith(stage)))) for stage in BY_PLACE}
    limit = len(whole) - of["details"] - of["counters"] - of["collectives"] - of["host"] // 2
    page_bytes = write_report(run, limit=limit)
    assert len(whole) < 5_000_000
    assert len(page_bytes) <= limit
    file = tmp_path / "report.html"
    file.write_bytes(page_bytes)
    page = opened(file)
    page.timeline()
    assert page.ink() > 20
    said = str(page.id("left-out").text_content())
    assert "Host threads and named ranges of ranks" in said
    assert "Counters of ranks 0–63." in said
    tracks = json.loads(inflated(read_report(page_bytes)[1]["timeline"]))["layout"]["tracks"]
    with_host = {track["rank"] for track in tracks if track["kind"] == "thread"}
    assert 45 in with_host  # the one that findings name
    assert 63 not in with_host
    assert {track["rank"] for track in tracks if track["kind"] == "stream"} == set(range(64))
    page.timeline("?rank=45")
    assert page.id("rank-45").get_attribute("aria-expanded") == "true"
    page.check(axe=True)
    # Without any room it says that, and not that nothing could be read.
    file.write_bytes(write_report(run, limit=100_000))
    page = opened(file)
    page.go("timeline")
    page.tab.get_by_text("The timeline does not fit in this file.").wait_for()
    assert "All events of ranks 0–63" in str(page.id("left-out").text_content())
