"""The report in a browser: its numbers are the analyses', it says nothing to the console, asks nothing of anyone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.reference import write_reference
from tests.browser.page import CHROMIUM, HOW, WAIT_MS
from tests.show.report.test_html_report import hostile_run

import rankscope
from rankscope.analyses import get_analysis
from rankscope.engine.pipeline import Run
from rankscope.show.export.formats import to_json
from rankscope.show.report.html_report import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the development requirements")
    if CHROMIUM is None:
        pytest.skip(f"no Chromium here. {HOW}")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=WAIT_MS
        )
        yield opened
        opened.close()


class Opened:
    """A report in the browser, and all that it said and asked for."""

    def __init__(self, browser: Any, file: Path, colors: str = "light") -> None:
        self.messages: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(color_scheme=colors, viewport={"width": 1400, "height": 4000})
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.messages.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("#app[data-ready]")

    def views(self) -> list[str]:
        """The names of the views."""
        links = self.page.locator('[data-testid^="nav-"]')
        return [str(link.get_attribute("data-testid"))[4:] for link in links.all()]

    def show(self, view: str) -> None:
        self.page.locator(f'[data-testid="nav-{view}"]').first.click()
        self.page.wait_for_selector(f'[data-testid="nav-{view}"][aria-current=page]', state="attached")
        self.page.wait_for_selector("main [data-testid=working]", state="detached")

    def headline(self, name: str) -> str | None:
        value: str | None = self.page.get_attribute(f'[data-testid="headline-{name}"]', "data-value")
        return value

    def tables(self) -> dict[str, list[tuple[int, dict[str, str]]]]:
        """The rows of the tables that are drawn: which row of the analysis, and its exact values by column."""
        found: dict[str, list[tuple[int, dict[str, str]]]] = self.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll('table[data-testid^="table-"]')].map((table) => [
                table.dataset.testid.slice(6),
                [...table.querySelectorAll('tr[data-row]')].map((row) => [Number(row.dataset.row), Object.fromEntries(
                    [...row.querySelectorAll('td[data-column]')].map((td) => [td.dataset.column, td.dataset.value])
                )]),
            ]))"""
        )
        return found


def reported(run: Run, folder: Path) -> Path:
    file = folder / "report.html"
    file.write_bytes(write_report(run))
    return file


def same(shown: str, value: object) -> bool:
    if value is None:
        return shown == ""
    if isinstance(value, bool):
        return shown == str(value).lower()
    return shown != "" and float(shown) == value if isinstance(value, int | float) else shown == value


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_numbers_on_the_page_are_those_of_analyze(browser: Any, tmp_path: Path, colors: str) -> None:
    run = rankscope.open(write_reference(tmp_path / "run"), executor="serial")
    opened = Opened(browser, reported(run, tmp_path), colors)
    overview = run.overview().row(0, named=True)
    assert opened.headline("step-time") == str(overview["step_ns"])
    assert float(opened.headline("overlap") or "nan") == overview["overlap_ratio"]
    assert opened.headline("exposed-communication") == str(overview["exposed_communication_ns"])
    late = run.diagnosis().stragglers.ranks
    assert opened.headline("stragglers") == (str(late[0]) if late else "")
    compared: dict[str, int] = {}
    for view in opened.views():
        opened.show(view)
        for name, rows in opened.tables().items():
            expected = json.loads(to_json(run.analyze(name)[name], run.about()))["rows"]
            for row, shown in rows:
                wanted = expected[row]
                for column in get_analysis(name).instants:
                    # On the page instants are counted from the first event of the row's own file.
                    began = run.loaded.ranks[wanted["rank"]][wanted["window"]].info.start_ns
                    wanted[column] = None if wanted[column] is None else wanted[column] - (began or 0)
                assert sorted(shown) == sorted(wanted)
                assert all(same(text, wanted[column]) for column, text in shown.items()), (name, shown, wanted)
            compared[name] = len(rows)
    # The kernels are those of one rank at a time.
    assert compared["kernels"] == run.kernels().height // 2
    assert compared["step_time"] == run.step_time().height
    assert compared["collectives"] == run.collectives().height
    assert opened.messages == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.asked)


def test_hostile_names_do_nothing_on_the_page(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, reported(hostile_run(tmp_path / "run"), tmp_path))
    for view in opened.views():
        opened.show(view)
    assert opened.messages == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.asked)
    assert opened.page.locator("script:not([data-rankscope])").count() == 2


@pytest.mark.usefixtures("shared_cache")
def test_the_eight_h100_on_the_page(browser: Any, shared_traces: Path, tmp_path: Path) -> None:
    run = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")
    opened = Opened(browser, reported(run, tmp_path))
    overview = run.overview().row(0, named=True)
    assert opened.headline("step-time") == str(overview["step_ns"])
    assert opened.headline("stragglers") == "1"
    for view in opened.views():
        opened.show(view)
    assert opened.messages == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.asked)
