"""Serves runs, opens them in headless Chromium and takes pictures of the overview and the timeline.

    python scripts/look_served.py PICTURES RUN [RUN …]

PICTURES is the folder that the pictures go to. Needs rankscope and playwright (Python) and a Chromium: the one of the
system unless CHROMIUM says otherwise.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
PLACES = {"overview": "overview", "timeline": "timeline", "step": "timeline?rank={rank}&step={step}"}


def settle(page: Page) -> None:
    """Wait until all that is in sight is drawn as it is."""
    page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]", timeout=60_000)
    page.wait_for_timeout(300)


def pictures(page: Page, folder: Path, name: str) -> None:
    """Every place of one run, in the size and colours that the page has."""
    page.wait_for_selector("#app[data-phase=ready]", timeout=300_000)
    layout = page.evaluate("async () => (await fetch('api/timeline')).json()")
    rank = layout["ranks"][min(1, len(layout["ranks"]) - 1)]
    steps = rank["steps"] or [[None, 0, 0]]
    for place, link in PLACES.items():
        page.goto(page.url.split("#")[0] + "#/" + link.format(rank=rank["rank"], step=steps[len(steps) // 2][0] or 0))
        if place == "overview":
            page.wait_for_timeout(2500)
        else:
            settle(page)
        page.screenshot(path=folder / f"{name}_{place}.png", full_page=place == "overview")
    page.locator("[data-testid=search]").fill("nccl")
    page.keyboard.press("Enter")
    page.wait_for_timeout(1500)
    page.locator("[data-testid=timeline-stage]").focus()
    page.keyboard.press("f")
    settle(page)
    page.screenshot(path=folder / f"{name}_selected.png", full_page=True)
    page.locator("[data-testid=timeline-stage]").focus()
    page.keyboard.press("m")
    page.wait_for_timeout(1200)
    page.screenshot(path=folder / f"{name}_measured.png", full_page=True)


def look(folder: Path, runs: list[Path]) -> None:
    """Serve each run and take its pictures in every size and colour scheme."""
    folder.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for run in runs:
            command = [sys.executable, "-m", "rankscope", "serve", str(run), "--no-open"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "300"})
            try:
                for size, (width, height) in SIZES.items():
                    for scheme in ("light", "dark"):
                        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                        page = context.new_page()
                        # An address opens one browser; the next is printed then.
                        address = next(
                            word
                            for line in iter(server.stdout.readline, "")
                            for word in line.split()
                            if "?token=" in word
                        )
                        page.goto(address)
                        pictures(page, folder, f"{run.name}_{size}_{scheme}")
                        context.close()
            finally:
                server.terminate()
                server.wait(30)
        browser.close()


if __name__ == "__main__":
    look(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
