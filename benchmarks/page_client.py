"""What the page costs in the browser: script per frame of the timeline, and the tab's memory.

A simulated run of 256 ranks is served, and the timeline shows all of them, one row each. Then the view is moved and
zoomed with the keys, a step per frame, while Chromium counts the CPU time of the page's script (thread time, so that a
busy machine does not change it). Memory is what the tab's process holds for itself (USS), at the end of a walk through
all zooms and with many ranks open.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

RANKS = 256
SHAPE = "--steps 4 --layers 4 --kernels-per-layer 8 --microbatches 2"
FRAMES = 240
READY_MS = 600_000

# A key a frame: to and fro, and in and out around where it began.
WALK = """async ([frames, keys]) => {
  const stage = document.querySelector('[data-testid=timeline-stage]');
  const before = stage.rankscopeStats().frames;
  for (let i = 0; i < frames; i++) {
    stage.dispatchEvent(new KeyboardEvent('keydown', {key: keys[i % keys.length], bubbles: true}));
    await new Promise(requestAnimationFrame);
  }
  const stats = stage.rankscopeStats();
  return {...stats, frames: stats.frames - before};
}"""


def settle(page: Any) -> None:
    page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]", timeout=READY_MS)
    page.wait_for_timeout(500)


def script_seconds(session: Any) -> float:
    """CPU seconds of the page's script so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "ScriptDuration"))


def tab_bytes(root: int) -> int:
    """What the largest of a browser's tabs holds for itself alone, in bytes."""
    tabs = [child for child in psutil.Process(root).children(recursive=True) if "--type=renderer" in child.cmdline()]
    return max(int(tab.memory_full_info().uss) for tab in tabs)


def measure(address: str) -> None:
    """Opens the page of a server and prints its costs."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("RANKSCOPE_CHROMIUM") or shutil.which("chromium")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(address)
        page.wait_for_selector("#app[data-phase=ready]", timeout=READY_MS)
        page.goto(page.url.split("#")[0] + "#/timeline")
        settle(page)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        for what, keys in (("moving", ["d", "a"]), ("zooming", ["w", "s"])):
            page.evaluate(WALK, [30, keys])  # until it is compiled
            settle(page)
            begin = script_seconds(session)
            stats = page.evaluate(WALK, [FRAMES, keys])
            each = (script_seconds(session) - begin) / stats["frames"] * 1e3
            print(
                f"{what}: {each:.2f} ms of script a frame at {stats['rectangles']:,} rectangles "
                f"(wall median {stats['median_ms']:.2f} ms)"
            )
        page.locator("[data-testid=open-all]").click()
        for _ in range(12):
            page.evaluate(WALK, [2, ["w"]])
            settle(page)
        for _ in range(24):
            page.locator("[data-testid=timeline-stage]").press("PageDown")
            page.wait_for_timeout(150)
        settle(page)
        stats = page.evaluate("document.querySelector('[data-testid=timeline-stage]').rankscopeStats()")
        tabs = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        most = max(
            tab_bytes(child.pid) for child in tabs if "--type=" not in " ".join(child.cmdline()) and has_tabs(child)
        )
        print(f"tab: {most / 1e6:.0f} MB of its own, of that {stats['tile_bytes'] / 1e6:.0f} MB of tiles")
        browser.close()


def has_tabs(process: psutil.Process) -> bool:
    return any("--type=renderer" in child.cmdline() for child in process.children(recursive=True))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "rankscope"]
        subprocess.run(
            [*command, "simulate", str(run), "--ranks", str(RANKS), *SHAPE.split()],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        environment = {**os.environ, "RANKSCOPE_CACHE": str(Path(folder) / "cache"), "COLUMNS": "300"}
        server = subprocess.Popen(
            [*command, "serve", str(run), "--no-open"], stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            measure(next(word for line in server.stdout or [] for word in line.split() if "?token=" in word))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
