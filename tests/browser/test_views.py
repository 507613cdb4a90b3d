"""Every view in a browser, one page a run: what it says is what the analyses say, and nothing of it is broken."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import Page
from tests.kineto import small_step, step, trace, write

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of, in_run_time
from rankscope.show.export.formats import to_json

pytestmark = pytest.mark.browser

VIEWS = {
    "overview", "whatif", "timeline", "run", "ranks", "stragglers", "distributed", "collectives", "steps",
    "critical_path", "phases", "data_loading", "idle", "operators", "kernels", "modules", "memory", "scaling", "diff",
}  # fmt: skip
SAID = """() => Object.fromEntries([...document.querySelectorAll('[data-testid^="answer-"]')].map((line) => [
    line.dataset.testid.slice(7),
    [...line.querySelectorAll('strong')].map((value) => [value.dataset.name, value.dataset.value]),
]))"""
SHOWN = """() => Object.fromEntries([...document.querySelectorAll('table[data-testid^="table-"]')].map((table) => [
    table.dataset.testid.slice(6),
    [...table.querySelectorAll('tr[data-row]')].map((row) => [Number(row.dataset.row), Object.fromEntries(
        [...row.querySelectorAll('td[data-column]')].map((td) => [td.dataset.column, td.dataset.value]))]),
]))"""
TIME = r"([\d.,]+) (ns|µs|ms|s)"
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visit(page: Page, view: str) -> None:
    """Go to a view, and wait until it has its numbers."""
    page.go(view)
    page.tab.wait_for_selector(f'[data-testid="nav-{view}"][aria-current=page]', state="attached")
    settle(page)
    if view == "timeline":
        page.settled()


def settle(page: Page) -> None:
    page.tab.wait_for_selector("main [data-testid=working]", state="detached")


def unfold(page: Page) -> None:
    """Open every table of the view."""
    page.tab.evaluate("() => { for (const fold of document.querySelectorAll('details.fold')) fold.open = true; }")
    settle(page)


def views_of(page: Page) -> list[str]:
    found: list[str] = page.tab.evaluate(
        "() => [...document.querySelectorAll('[data-testid^=nav-]')].map((link) => link.dataset.testid.slice(4))"
    )
    return found


def same(shown: str, value: object) -> bool:
    """Whether a value of the page is that of the analysis."""
    if value is None:
        return shown == ""
    if isinstance(value, bool):
        return shown == str(value).lower()
    if isinstance(value, int | float):
        return shown != "" and math.isclose(float(shown), value, rel_tol=1e-12)
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return shown == text[:2000]


class Truth:
    """What `rankscope analyze` writes, an analysis at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._made: dict[str, dict[str, Any]] = {}

    def of(self, name: str) -> dict[str, Any]:
        if name not in self._made:
            result = in_run_time(self._run.analyze(name)[name], clock_of(self._run))
            self._made[name] = json.loads(to_json(result, self._run.about()))
        return self._made[name]

    def headline(self, name: str) -> dict[str, Any]:
        """What the diagnosis says, of the run and of its stragglers; else the analysis."""
        diagnosis = self._run.diagnosis()
        said = diagnosis.headline if name == "diagnosis" else diagnosis.headline_of(self._run.analyze(name)[name])
        found: dict[str, Any] = json.loads(json.dumps(said.to_json() if said else None))
        return found

    def row(self, name: str, number: int) -> dict[str, Any]:
        """A row as the page shows it."""
        row: dict[str, Any] = self.of(name)["rows"][number]
        return row


def shares_of_steps(page: Page) -> None:
    """On the overview an amount by the step that stands beside it is the share, in the numbers and in what is read."""
    card = page.id("headline-exposed-communication")
    exposed, share, of = (card.get_attribute(f"data-{name}") for name in ("value", "share", "of"))
    if exposed and share and of:
        assert float(share) == pytest.approx(float(exposed) / float(of), abs=2 / float(of))
    read = str(card.evaluate("(value) => value.closest('.card').textContent")).replace("\u00a0", " ")
    shown = re.search(rf"communication{TIME}\D*?([\d.]+) % of the (?:mean step \({TIME}\)|step),", read)
    if shown is not None:
        text = page.id("headline-step-time").text_content().replace("\u00a0", " ")
        whole = re.search(TIME, text) if shown[4] is None else None
        mean = nanoseconds(*(shown.group(4, 5) if whole is None else whole.groups()))
        assert float(shown[3]) / 100 == pytest.approx(nanoseconds(shown[1], shown[2]) / mean, abs=0.001), read
    elif exposed not in ("", "0", None):
        raise AssertionError(read)
    said = {name: float(value) for name, value in page.tab.evaluate(SAID).get("overview", []) if value}
    if "exposed" in said:
        assert said["share"] == pytest.approx(said["exposed"] / said.get("mean", said["step"]), abs=1e-6)


def nanoseconds(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]


def every_view(page: Page, truth: Truth | None, *, axe: bool = True) -> None:
    """All views at 1280 px with all tables open, then at 390 px in the other colors."""
    page.ready()
    views = views_of(page)
    assert set(views) >= VIEWS
    told, tables = set(), set()
    visit(page, "overview")
    shares_of_steps(page)
    for view in views:
        visit(page, view)
        assert page.tab.locator("#view-title").text_content()
        assert "0 rows" not in page.tab.locator("details.fold summary small").all_text_contents(), view
        unfold(page)
        page.check(axe=axe)
        if view == "run":
            facts = str(page.tab.locator(".run-facts").first.text_content())
            assert re.search("Traces written by(?:PyTorch|rankscope)", facts), facts
        if truth is not None and view != "diff":
            for name, values in page.tab.evaluate(SAID).items():
                headline = truth.headline(name.removeprefix("part-"))
                wanted = {each["name"]: each["value"] for each in headline["values"]}
                assert {key for key, _ in values} == set(wanted)
                assert all(same(text, wanted[key]) for key, text in values), (name, values, wanted)
                told.add(name)
            for name, rows in page.tab.evaluate(SHOWN).items():
                for number, shown in rows:
                    wanted = truth.row(name, number)
                    assert sorted(shown) == sorted(wanted)
                    assert all(same(text, wanted[column]) for column, text in shown.items()), (name, shown, wanted)
                tables.add(name)
    if truth is not None:
        assert {"diagnosis", "device_time", "distributed", "operators"} <= told
        assert {"step_time", "distributed", "collective_summary_by_kind", "placement", "operators", "clock"} <= tables
    page.tab.set_viewport_size({"width": 390, "height": 844})
    page.tab.emulate_media(color_scheme="dark")
    for view in views:
        visit(page, view)
        page.check(axe=axe and truth is not None)


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("name", ["h100", "gloo"])
def test_every_view_says_what_analyze_says(opened: Callable[..., Page], runs: Callable[[str], Path], name: str) -> None:
    folder = runs(name)
    every_view(opened(folder), Truth(rankscope.open(folder, executor="serial")))


@pytest.mark.parametrize("name", ["single", "cpu", "ranks258", "hostile"])
def test_every_view(opened: Callable[..., Page], runs: Callable[[str], Path], name: str) -> None:
    page = opened(runs(name))
    every_view(page, None)
    if name == "hostile":
        assert page.tab.locator("script").count() == 2
        assert page.tab.locator("img").count() == 0
        assert "\u202e" not in str(page.tab.evaluate("() => document.body.innerText"))
        assert_csv_is_inert(page)


def assert_csv_is_inert(page: Page) -> None:
    """What a spreadsheet would run as a formula begins with a quote in the file that is downloaded."""
    page.tab.set_viewport_size({"width": 1280, "height": 900})
    visit(page, "kernels")
    with page.tab.expect_download() as downloading:
        page.id("csv-kernels").click()
    text = Path(downloading.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert any(row["name"].startswith("'-->") for row in rows)
    assert not [row["name"] for row in rows if row["name"].startswith(FORMULA)]


def test_the_field_leads_to_its_rank(opened: Callable[..., Page], runs: Callable[[str], Path]) -> None:
    page = opened(runs("h100"))
    page.ready()
    visit(page, "ranks")
    field = page.id("rank-field")
    assert (field.get_attribute("data-rows"), field.get_attribute("data-columns")) == ("1", "8")
    field.focus()
    for key in ("ArrowRight", "ArrowRight"):  # the first one enters it
        page.tab.keyboard.press(key)
    waited = page.tab.evaluate("async () => (await (await fetch('api/table/stragglers')).json()).data")
    assert waited["rank"][1] == 1
    assert str(page.id("rank-field-readout").text_content()).startswith("Rank 1: 34.")
    page.tab.keyboard.press("Enter")
    page.settled()
    assert page.id("rank-1").get_attribute("aria-expanded") == "true"
    page.check()


def test_two_runs_side_by_side(tmp_path: Path, opened: Callable[..., Page], shared_cache: Path) -> None:
    for number, name in enumerate(("first", "second")):
        events = [
            event
            for later in (0, 1)  # no step of one run has a number of the other
            for event in small_step(
                5e6 * number + 100 * later, number + 2 * later, correlation=1 + 3 * later, waiting=9 * number
            )
        ]
        content = trace(events, rank=0, rankscope={"schema_version": 1, "run_id": f"{name}-id"})
        write(tmp_path / "runs" / name / "rank0.json", content)
    page = opened(tmp_path / "runs")
    page.tab.wait_for_function(
        "() => document.querySelector('[data-testid=run]')?.options.length === 2", timeout=60_000
    )
    page.ready()
    visit(page, "diff")
    page.id("answer-diff").wait_for()
    one, two = (rankscope.open(tmp_path / "runs" / name, executor="serial") for name in ("first", "second"))
    wanted = rankscope.diff(one, two).to_json()["rows"]
    said = page.tab.evaluate(SAID)["diff"]
    step = next(row for row in wanted if row["section"] == "steps")
    assert [float(value) for _, value in said[:2]] == [step["a"], step["b"]]
    for section in {row["section"] for row in wanted}:
        page.id("diff-section").select_option(section)
        numbers = [number for number, row in enumerate(wanted) if row["section"] == section]
        first = "Number(document.querySelector('[data-testid=table-diff] tr[data-row]')?.dataset.row)"
        page.tab.wait_for_function(f"(numbers) => numbers.includes({first})", arg=numbers)
        rows = page.tab.evaluate(SHOWN)["diff"]
        assert rows and {number for number, _ in rows} <= set(numbers)
        for number, shown in rows:
            assert all(same(text, wanted[number][column]) for column, text in shown.items()), (shown, wanted[number])
    page.check(axe=True)
    # One step of both, on one scale; from there into the timeline of either run.
    page.id("diff-section").select_option("kernels")
    page.id("diff-strip-b").wait_for()
    said = [str(page.id(f"diff-strip-{side}").get_attribute("aria-label")) for side in ("a", "b")]
    assert [label.partition(": ")[0] for label in said] == ["first, rank 0, step 2", "second, rank 0, step 3"]
    page.id("diff-stepa").select_option("1")
    page.tab.wait_for_function(
        "() => document.querySelector('[data-testid=diff-strip-a]')?.ariaLabel.startsWith('first, rank 0, step 0: ')"
    )
    assert str(page.id("diff-strip-b").get_attribute("aria-label")).startswith("second, rank 0, step 3: ")
    before = page.tab.evaluate("() => new URLSearchParams(location.hash.split('?')[1]).get('run')")
    page.id("diff-open-a").click()
    page.settled()
    place = page.tab.evaluate("() => Object.fromEntries(new URLSearchParams(location.hash.split('?')[1]))")
    assert place["run"] != before and place["open"] == "0"


# A view without its data: a sentence and what to record, no picture and no open table.
EMPTY = """() => ({
  said: document.querySelector('#main .state, #main .quiet-box')?.textContent ?? '',
  pictures: document.querySelectorAll('#main .chart').length,
  open: document.querySelectorAll('#main .fold[open]').length,
})"""


def test_views_without_their_data_say_what_to_record(tmp_path: Path, opened: Callable[..., Page]) -> None:
    steps = trace([step(number, 100 * number, 90) for number in range(4)], rank=0)
    write(tmp_path / "run" / "steps_rank0.json", steps)
    page = opened(tmp_path / "run")
    page.ready()
    says = {
        "stragglers": "Gather the traces of all ranks",
        "distributed": "With several ranks, record device activity",
        "collectives": "With several ranks, record device activity",
        "phases": "record CPU activity",
        "data_loading": "record_function",
        "idle": "record its activity",
        "operators": "ProfilerActivity.CPU",
        "kernels": "record its activity",
        "modules": "with_stack=True",
        "memory": "profile_memory=True",
        "diff": "rankscope serve DIR",
    }
    for view, words in says.items():
        page.go(view)
        page.tab.wait_for_selector(f'[data-testid="nav-{view}"][aria-current=page]', state="attached")
        page.tab.wait_for_selector("#main [data-testid=working]", state="detached")
        found = page.tab.evaluate(EMPTY)
        assert words in found["said"], (view, found)
        assert (found["pictures"], found["open"]) == (0, 0), view
    page.check()
