"""Takes the pictures of the page that README and docs show, from real traces and a simulated run.

    python docs/pictures.py TRACES [--only timeline,ranks]

TRACES is a run of 8 ranks on H100 (modded-nanogpt). Needs playwright, Pillow and a Chromium: the one of the system
unless RANKSCOPE_CHROMIUM says otherwise. Pictures have 256 colours: little is lost, and a page of docs is soon loaded.
"""

from __future__ import annotations

import argparse
import io
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
SIMULATED = "--ranks 64 --mesh pp=2,dp=4,tp=8 --steps 3 --fault slow_device:rank=37 --seed 3"
COLOURS = 256
WAIT_MS = 300_000
# Step 11, and a moment within its last reduce_scatter: rank 1 comes last, and all others wait.
FROM_NS, TO_NS, AT_NS, RANK = 73_000_000, 124_500_000, 106_000_000, 5


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


PICTURES: dict[str, tuple[bool, tuple[int, int], Callable[[Any], None]]] = {
    "overview": (False, (1180, 900), view("overview")),
    "timeline": (False, (1360, 860), timeline),
    "distributed": (False, (1180, 780), view("distributed")),
    "ranks": (True, (1180, 745), view("ranks")),
}
"""By name of the file: whether it is of the simulated run, how large it is, and what is shown."""


def go(page: Any, place: str) -> None:
    """To a place of the page."""
    page.evaluate("(to) => { location.hash = to }", f"#/{place}")


@contextmanager
def served(folder: Path) -> Iterator[Callable[[], str]]:
    """A server of a run; gives addresses, each good for one browser."""
    command = [sys.executable, "-m", "rankscope", "serve", str(folder), "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "300"})
    assert server.stdout is not None
    said = (word for line in iter(server.stdout.readline, "") for word in line.split() if "?token=" in word)
    try:
        yield lambda: next(said)
    finally:
        server.terminate()
        server.wait(30)


def take(traces: Path, names: list[str]) -> None:
    """Write the pictures."""
    chromium = os.environ.get("RANKSCOPE_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        simulated = Path(place) / "sim64"
        if any(PICTURES[name][0] for name in names):
            command = [sys.executable, "-m", "rankscope", "simulate", str(simulated), *SIMULATED.split()]
            subprocess.run(command, check=True)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for of_simulated in (False, True):
            wanted = [name for name in names if PICTURES[name][0] is of_simulated]
            if not wanted:
                continue
            with served(simulated if of_simulated else traces) as address:
                context = browser.new_context(color_scheme="light", reduced_motion="reduce")
                page = context.new_page()
                page.goto(address())
                page.wait_for_selector("#app[data-phase=ready]", timeout=WAIT_MS)
                for name in wanted:
                    _, (width, height), show = PICTURES[name]
                    page.set_viewport_size({"width": width, "height": height})
                    show(page)
                    page.wait_for_timeout(1500)
                    write(page.screenshot(), IMAGES / f"{name}.png")
                context.close()


def write(png: bytes, path: Path) -> None:
    """A picture with few colours, the rare ones of a legend among them, and how large it is."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    picture = whole.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--only", default=",".join(PICTURES))
    given = parser.parse_args()
    take(given.traces, given.only.split(","))
