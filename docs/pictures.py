"""Takes the pictures of the page that README and docs show, from real traces and simulated runs.

    python docs/pictures.py TRACES [--only timeline,ranks] [--analyses device_time,idle | all]

TRACES is a folder with the sets of traces that `analyses.json` in `images` names, among them the 8 ranks on H100
(modded-nanogpt). Needs playwright, Pillow and a Chromium: the one of the system unless RANKSCOPE_CHROMIUM says
otherwise. Pictures have few colors: little is lost, and a page of docs is soon loaded.

Each analysis of ours has a picture too, of what shows its answer: `analyses.json` says of which run, at which place of
the page (an analysis's name leads to its table) and of which element, by its test id.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent / "images"
SIMULATED = "simulate --ranks 64 --mesh pp=2,dp=4,tp=8 --steps 3 --fault slow_device:rank=37 --seed 3"
RUNS = {
    "h100": "modded-nanogpt-h100-8ranks",
    "gloo": "gloo-2ranks/ddp_gpt_straggler_rank1.rank*",
    "sim64": SIMULATED,
}
"""The runs of the views' pictures: files in TRACES, or a command that makes them."""
COLORS = 256
WAIT_MS, SHOWN_MS = 300_000, 20_000
# An analysis's picture: the window it is taken in, how large it may be, and how wide (in ch) a column of a table.
WINDOW, WIDEST, TALLEST, COLUMN = (1180, 1400), 900, 440, 34
# Step 11, and a moment within its last reduce_scatter: rank 1 comes last, and all others wait.
FROM_NS, TO_NS, AT_NS, RANK = 73_000_000, 124_500_000, 106_000_000, 5

# Of a table some columns, no wider than need be, and the box of the whole columns and rows that have room.
OF_TABLE = """(table, [columns, widest, tallest, most]) => {
    const heads = [...table.querySelectorAll("thead th")];
    const hides = (head) => columns.length > 0 && !columns.includes(head.dataset.column);
    const hidden = heads.flatMap((head, at) => (hides(head) ? [at + 1] : []));
    const sheet = Object.assign(new CSSStyleSheet(), { ours: true });
    sheet.replaceSync(hidden.map((at) =>
        `tr:not(.spacer) > :nth-child(${at}), col:nth-child(${at}) { display: none; }`).join(" "));
    document.adoptedStyleSheets = [...document.adoptedStyleSheets.filter((each) => !each.ours), sheet];
    const kept = [...table.querySelectorAll("col")].filter((col) => getComputedStyle(col).display !== "none");
    const wide = kept.map((col) => Math.min(parseFloat(col.style.width), most));
    kept.forEach((col, at) => { col.style.width = `${wide[at]}ch`; });
    table.style.minWidth = "0";
    table.style.width = `${wide.reduce((sum, each) => sum + each, 0)}ch`;
    const place = table.parentElement;
    place.scrollIntoView({ block: "center" });
    const box = place.getBoundingClientRect();
    const last = (cells, side, begin, most) => Math.max(...[...cells]
        .map((cell) => cell.getBoundingClientRect()).filter(({ width }) => width > 0)
        .map((cell) => cell[side] - begin).filter((end) => end <= most));
    const rows = table.querySelectorAll("thead tr, tbody tr[data-row]");
    const width = last(heads, "right", box.left, Math.min(widest, box.width + 1));
    const height = last(rows, "bottom", box.top, Math.min(tallest, box.height + 1));
    return { x: box.left, y: box.top, width: Math.ceil(width), height: Math.ceil(height) };
}"""
# A figure's box; of a long list as far as whole entries have room.
OF_FIGURE = """(figure, tallest) => {
    figure.scrollIntoView({ block: "start" });
    const { left, top, width, height } = figure.getBoundingClientRect();
    const ends = [...figure.querySelectorAll("li")]
        .map((entry) => entry.getBoundingClientRect().bottom - top).filter((end) => end <= tallest);
    const cut = height > tallest && ends.length > 5;
    return { x: left, y: top, width, height: cut ? Math.ceil(Math.max(...ends)) + 4 : height };
}"""


def timeline(page: Any) -> None:
    """All ranks in one step, with a collective selected for which seven ranks wait."""
    go(page, f"timeline?t={FROM_NS}_{TO_NS}")
    page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]")
    stage = page.locator("[data-testid=timeline-stage]").bounding_box()
    row = page.locator(f"[data-testid=rank-{RANK}]").bounding_box()
    # What moves data lies in the lower part of a rank's row.
    share = (AT_NS - FROM_NS) / (TO_NS - FROM_NS)
    page.mouse.click(stage["x"] + share * stage["width"], row["y"] + 0.8 * row["height"])
    page.wait_for_selector("[data-testid=selection]")
    page.mouse.move(0, 0)
    page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]")


def view(name: str) -> Callable[[Any], None]:
    """A view as it is at first."""

    def shown(page: Any) -> None:
        go(page, name)
        page.wait_for_selector(f"[data-testid=nav-{name}][aria-current=page]", state="attached")

    return shown


def whatif(page: Any) -> None:
    """One step as recorded and as replayed without its straggler."""
    go(page, "whatif?with=--fix rank=37")
    page.wait_for_selector("[data-testid=step-replayed]", timeout=WAIT_MS)


def calls(page: Any) -> None:
    """What rank 1 did in a step that rank 0 did not: it slept in its loader."""
    go(page, "timeline?rank=1&step=2&calls=flame_operators_1_0")
    page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]")
    page.wait_for_selector("[data-testid=flame]")


PICTURES: dict[str, tuple[str, tuple[int, int], Callable[[Any], None]]] = {
    "overview": ("h100", (1180, 900), view("overview")),
    "timeline": ("h100", (1360, 860), timeline),
    "distributed": ("h100", (1180, 780), view("distributed")),
    "ranks": ("sim64", (1180, 745), view("ranks")),
    "whatif": ("sim64", (1280, 900), whatif),
    "calls": ("gloo", (1440, 900), calls),
}
"""By name of the file: which run it is of, how large it is, and what is shown."""


def go(page: Any, place: str) -> None:
    """To a place of the page."""
    page.evaluate("(to) => { location.hash = to }", f"#/{place}")


@contextmanager
def served(traces: list[str]) -> Iterator[Callable[[], str]]:
    """A server of a run; gives addresses, each good for one browser."""
    command = [sys.executable, "-m", "rankscope", "serve", *traces, "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "300"})
    assert server.stdout is not None
    said = (word for line in iter(server.stdout.readline, "") for word in line.split() if "?token=" in word)
    try:
        yield lambda: next(said)
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def opened(browser: Any, traces: list[str]) -> Iterator[Any]:
    """The page of a run, with every analysis made."""
    with served(traces) as address:
        context = browser.new_context(color_scheme="light", reduced_motion="reduce")
        page = context.new_page()
        page.goto(address())
        page.wait_for_selector("#app[data-phase=ready]", timeout=WAIT_MS)
        yield page
        context.close()


def files_of(source: str, traces: Path, folder: Path) -> list[str]:
    """The files of a run: those in TRACES that match, or what a command makes in the folder."""
    if source.split()[0] in ("simulate", "demo"):
        return made(source, folder)
    return sorted(map(str, traces.glob(source)))


def made(command: str, folder: Path) -> list[str]:
    """What `rankscope simulate` or `demo` writes, in a folder."""
    verb, *words = command.split()
    where = [str(folder)] if verb == "simulate" else ["--output", str(folder)]
    subprocess.run([sys.executable, "-m", "rankscope", verb, *where, *words], check=True)
    return [str(folder)]


def take(browser: Any, traces: Path, place: Path, names: list[str]) -> None:
    """Write the pictures of the views."""
    for run, source in RUNS.items():
        wanted = [name for name in names if PICTURES[name][0] == run]
        if not wanted:
            continue
        with opened(browser, files_of(source, traces, place / run)) as page:
            for name in wanted:
                _, (width, height), show = PICTURES[name]
                page.set_viewport_size({"width": width, "height": height})
                show(page)
                page.wait_for_timeout(1500)
                write(page.screenshot(), IMAGES / f"{name}.png")


def take_analyses(browser: Any, traces: Path, place: Path, names: list[str]) -> None:
    """Write the pictures of analyses, run by run."""
    listed = json.loads((IMAGES / "analyses.json").read_text(encoding="utf-8"))
    for run, about in listed["runs"].items():
        wanted = [name for name in names if listed["pictures"][name]["run"] == run]
        if not wanted:
            continue
        with opened(browser, files_of(about["from"], traces, place / run)) as page:
            page.set_viewport_size({"width": WINDOW[0], "height": WINDOW[1]})
            for name in wanted:
                one = listed["pictures"][name]
                shown = one["show"]
                go(page, one["place"])
                open_fold(page, shown)
                page.wait_for_selector(selector(shown), timeout=SHOWN_MS)
                page.wait_for_timeout(1500)
                png = cropped(page, shown, one.get("columns", []), one.get("column_ch", COLUMN))
                write(png, IMAGES / "analyses" / f"{name}.png")


def selector(shown: str) -> str:
    """The element of a test id, or with a dot before it of a class."""
    return shown if shown.startswith(".") else f"[data-testid={shown}]"


def open_fold(page: Any, shown: str) -> None:
    """Open the fold that a table lies in, where a view has it in one."""
    page.wait_for_timeout(500)
    fold = page.locator(f"[data-testid=fold-{shown.removeprefix('table-')}]:not([open]) > summary")
    if shown.startswith("table-") and fold.count():
        fold.click()


def cropped(page: Any, shown: str, columns: list[str], widest_column: int) -> bytes:
    """A picture of one element: a figure whole, of a table the head, the rows that have room, and some columns."""
    element = page.locator(selector(shown)).first
    if not shown.startswith("table-"):
        figure = element.locator("xpath=ancestor::*[contains(@class, 'figure')][1]")
        return listing(page, figure if figure.count() else element)
    box = element.evaluate(OF_TABLE, [columns, WIDEST, TALLEST, widest_column])
    table: bytes = page.screenshot(clip=box)
    return table


def listing(page: Any, element: Any) -> bytes:
    """A picture of a figure; of a long list the entries that have room."""
    box = element.evaluate(OF_FIGURE, TALLEST)
    picture: bytes = page.screenshot(clip=box)
    return picture


def write(png: bytes, path: Path) -> None:
    """A picture with few colors, the rare ones of a legend among them, and how large it is."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    picture = whole.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    """Take what is asked for; of the views all, where nothing is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--only", help="views, with commas between; all of them where --analyses is not given either")
    parser.add_argument("--analyses", help="analyses, with commas between, or all")
    given = parser.parse_args()
    views = given.only.split(",") if given.only else [] if given.analyses else list(PICTURES)
    listed = json.loads((IMAGES / "analyses.json").read_text(encoding="utf-8"))["pictures"]
    analyses = list(listed) if given.analyses == "all" else given.analyses.split(",") if given.analyses else []
    chromium = os.environ.get("RANKSCOPE_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        take(browser, given.traces, Path(place), views)
        take_analyses(browser, given.traces, Path(place), analyses)


if __name__ == "__main__":
    main()
