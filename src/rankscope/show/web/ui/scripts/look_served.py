"""Serves runs, opens them in headless Chromium, takes a picture of every view, and says what a picture does not show.

    python scripts/look_served.py PICTURES RUN [RUN …] [--only VIEW,VIEW] [--modes wide_light,narrow_dark]

PICTURES is the folder that the pictures go to. Needs rankscope and playwright (Python) and a Chromium: the one of the
system unless CHROMIUM says otherwise. Fails on a console error, a page that scrolls sideways, text that is clipped
without an ellipsis, and on whatever axe-core finds.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from look import AXE, CLIPPED, watch
from playwright.sync_api import Page, sync_playwright

SIZES = {"wide": (1440, 900), "medium": (1024, 768), "narrow": (390, 844)}
MODES = [f"{size}_{scheme}" for size in SIZES for scheme in ("light", "dark")]
VIEWS = "[...document.querySelectorAll('#views a')].map((a) => a.dataset.testid.replace(/^nav-/, ''))"


def settle(page: Page) -> None:
    """Wait until all that is in sight is drawn as it is."""
    page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]", timeout=60_000)
    page.wait_for_timeout(300)


def go(page: Page, place: str) -> None:
    """To a place of the page."""
    page.evaluate("(to) => { location.hash = to }", f"#/{place}")


def timeline(page: Page, name: str) -> None:
    """The timeline at first, within a step, with something selected and with something measured."""
    go(page, "timeline")
    settle(page)
    page.screenshot(path=f"{name}_timeline.png")
    layout = page.evaluate("async () => (await fetch('api/timeline')).json()")
    rank = layout["ranks"][min(1, len(layout["ranks"]) - 1)]
    steps = rank["steps"] or [[0, 0, 0]]
    go(page, f"timeline?rank={rank['rank']}&step={steps[len(steps) // 2][0] or 0}")
    settle(page)
    page.screenshot(path=f"{name}_timeline_step.png")
    for key in ("e", "f"):
        page.locator("[data-testid=timeline-stage]").focus()
        page.keyboard.press(key)
        page.wait_for_timeout(900)
    settle(page)
    page.screenshot(path=f"{name}_timeline_selected.png", full_page=True)
    page.locator("[data-testid=timeline-stage]").focus()
    page.keyboard.press("m")
    page.wait_for_timeout(1200)
    page.screenshot(path=f"{name}_timeline_measured.png", full_page=True)


def faults_of(page: Page) -> list[str]:
    """What is wrong with what is shown, though a picture may not show it."""
    state = page.evaluate(CLIPPED)
    found = [f"scrolls sideways by {state['wide']} px"] if state["wide"] > 0 else []
    found += [f"clipped: {text}" for text in state["clipped"] if "tl-" not in text and text != "H2: Timeline"]
    if AXE.exists():
        page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        for each in report["violations"]:
            targets = "; ".join(str(node["target"]) for node in each["nodes"][:3])
            found.append(f"axe {each['id']} ({each['impact']}): {targets}")
    return found


def look(folder: Path, runs: list[Path], only: list[str], modes: list[str]) -> list[str]:
    """Serve each run and take its pictures; the faults that were found."""
    folder.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for run in runs:
            command = [sys.executable, "-m", "rankscope", "serve", str(run), "--no-open"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "300"})
            addresses = (
                word for line in iter(server.stdout.readline, "") for word in line.split() if "?token=" in word
            )
            try:
                for mode in modes:
                    size, scheme = mode.split("_")
                    width, height = SIZES[size]
                    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                    page = context.new_page()
                    watch(page, f"{run.name} {mode}", heard := [])
                    page.goto(next(addresses))  # an address opens one browser; the next is printed then
                    page.wait_for_selector("#app[data-phase=ready]", timeout=600_000)
                    page.wait_for_timeout(500)
                    for view in only or page.evaluate(VIEWS):
                        name = f"{folder}/{run.name}_{mode}"
                        if view == "timeline":
                            timeline(page, name)
                        else:
                            go(page, view)
                            page.wait_for_timeout(1200)
                            page.screenshot(path=f"{name}_{view}.png", full_page=True)
                        faults += [f"{run.name} {mode} {view}: {fault}" for fault in faults_of(page)]
                    faults += [fault for fault in heard if ": request " not in fault]
                    context.close()
            finally:
                server.terminate()
                server.wait(30)
        browser.close()
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", default=",".join(MODES))
    given = parser.parse_args()
    found = look(given.pictures, given.runs, [each for each in given.only.split(",") if each], given.modes.split(","))
    print("\n".join(found) or "nothing to fix")
    sys.exit(1 if found else 0)
