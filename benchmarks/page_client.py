"""What the page costs in the browser: script per frame of the timeline, and the tab's memory.

Three runs, in headless Chromium: 256 ranks simulated as files and served as anyone's; ten million simulated events over
512 lanes of 8 ranks, all of them opened; ten million over 1,000 ranks of a lane each. The view is moved and zoomed with
the keys, a step per frame, while Chromium counts the CPU time of the page's script (thread time, so that a busy machine
changes it less). *Moving* is of the frames of a pan, whose picture is moved and drawn where it is new; *zooming* draws
every pixel anew. Memory is what the tab's process holds for itself (USS), at the end of a walk through all zooms.

    python -m benchmarks page_client
    python -m benchmarks.page_client lanes512 ranks1000 [--profile FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.page import EVENTS, LANES, RANKS, simulated
from rankscope.show.timeline.named_lanes import NameTracks
from rankscope.show.timeline.search import Search
from rankscope.show.web.loading import State
from rankscope.show.web.runs import Runs
from rankscope.show.web.security import Gate
from rankscope.show.web.server import make_app, token_address

SHAPE = "--ranks 256 --steps 4 --layers 4 --kernels-per-layer 8 --microbatches 2"
MANY_RANKS = 1_000
FRAMES = 240
READY_MS = 600_000

# A key a frame: to and fro, or in and out around where it began.
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


def chromium() -> str | None:
    """The browser to use."""
    return os.environ.get("RANKSCOPE_CHROMIUM") or shutil.which("chromium")


def settle(page: Any) -> None:
    """Waits until everything visible is drawn completely."""
    page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]", timeout=READY_MS)
    page.wait_for_timeout(500)


def script_seconds(session: Any) -> float:
    """CPU seconds of the page's script so far."""
    return _seconds(session, "ScriptDuration")


def task_seconds(session: Any) -> float:
    """CPU seconds of all that the page's main thread did so far: script, layout, painting."""
    return _seconds(session, "TaskDuration")


def _seconds(session: Any, name: str) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == name))


def tab_bytes(root: int) -> int:
    """The private memory of the largest tab of a browser, in bytes."""
    tabs = [child for child in psutil.Process(root).children(recursive=True) if "--type=renderer" in child.cmdline()]
    return max(int(tab.memory_full_info().uss) for tab in tabs)


def frames(page: Any, session: Any, name: str, profile: Path | None) -> None:
    """Prints the cost of a frame for each kind of movement."""
    for what, keys in (("moving", ["d", "a"]), ("zooming", ["w", "s"])):
        page.evaluate(WALK, [120, keys])  # until it is compiled
        settle(page)
        if profile is not None:
            session.send("Profiler.enable")
            session.send("Profiler.setSamplingInterval", {"interval": 200})
            session.send("Profiler.start")
        begin = script_seconds(session)
        stats = page.evaluate(WALK, [FRAMES, keys])
        each = (script_seconds(session) - begin) / stats["frames"] * 1e3
        if profile is not None:
            found = session.send("Profiler.stop")["profile"]
            (profile / f"{name}-{what}.cpuprofile").write_text(json.dumps(found), encoding="utf-8")
        print(
            f"  {what}: {each:.2f} ms of script a frame at {stats['rectangles']:,} rectangles "
            f"(wall median {stats['median_ms']:.2f} ms)",
            flush=True,
        )


def measure(name: str, address: str, *, opened: bool, zoom: int, profile: Path | None) -> None:
    """Opens the page of a server and prints its costs.

    Args:
        opened: all ranks are opened into their lanes.
        zoom: how many steps closer than the whole run the view is moved and zoomed.
    """
    from playwright.sync_api import sync_playwright

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(address)
        page.wait_for_selector("#app[data-phase=ready]", timeout=READY_MS)
        page.goto(page.url.split("#")[0] + "#/timeline")
        settle(page)
        if opened:
            expand_all(page)
        page.evaluate(WALK, [zoom, ["w"]])
        settle(page)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        frames(page, session, name, profile)
        expand_all(page)
        for _ in range(12):
            page.evaluate(WALK, [2, ["w"]])
            settle(page)
        for _ in range(24):
            page.locator("[data-testid=timeline-stage]").press("PageDown")
            page.wait_for_timeout(150)
        settle(page)
        page.locator("[data-testid=whole]").click()
        settle(page)
        stats = page.evaluate("document.querySelector('[data-testid=timeline-stage]').rankscopeStats()")
        tabs = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        most = max(
            tab_bytes(child.pid) for child in tabs if "--type=" not in " ".join(child.cmdline()) and has_tabs(child)
        )
        print(f"  tab: {most / 1e6:.0f} MB of its own, of that {stats['tile_bytes'] / 1e6:.0f} MB of tiles", flush=True)
        browser.close()


def expand_all(page: Any) -> None:
    """Opens all ranks into their lanes."""
    page.locator("[data-testid=view-menu] summary").click()
    page.locator("[data-testid=open-all]").click()
    page.keyboard.press("Escape")


def has_tabs(process: psutil.Process) -> bool:
    """Whether it is a browser with a tab."""
    return any("--type=renderer" in child.cmdline() for child in process.children(recursive=True))


@contextmanager
def of_files(shape: str = SHAPE) -> Iterator[str]:
    """A simulated run as files, 256 ranks by default, served by the command; its address."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "rankscope"]
        subprocess.run([*command, "simulate", str(run), *shape.split()], check=True, stdout=subprocess.DEVNULL)
        environment = {**os.environ, "RANKSCOPE_CACHE": str(Path(folder) / "cache"), "COLUMNS": "300"}
        server = subprocess.Popen(
            [*command, "serve", str(run), "--no-open"], stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            yield next(word for line in server.stdout or [] for word in line.split() if "?token=" in word)
        finally:
            server.terminate()
            server.wait()


@contextmanager
def of_lanes(ranks: int, lanes: int) -> Iterator[str]:
    """Ten million events in memory, behind the server that the command starts; its address."""
    import uvicorn

    timeline, _ = simulated(ranks, lanes)
    runs, gate = Runs(["."]), Gate.of([])  # never started: what it would have read is put in its place
    loaded = runs.shown.loaded
    loaded.timeline, loaded.search, loaded.name_tracks = timeline, Search(timeline), NameTracks(timeline)
    loaded._state = State(phase="ready", version=1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(make_app(runs, gate), log_level="warning", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield token_address(f"http://127.0.0.1:{listener.getsockname()[1]}", gate)
        finally:
            server.should_exit = True
            thread.join()


def main(wanted: list[str] | None = None, profile: Path | None = None) -> None:
    for name in wanted or ["files256", "lanes512", "ranks1000"]:
        if name == "files256":
            print("256 ranks of files, a row each:", flush=True)
            with of_files() as address:
                measure(name, address, opened=False, zoom=1, profile=profile)
        elif name == "lanes512":
            print(f"{EVENTS:,} events over {LANES} lanes of {RANKS} ranks, all opened:", flush=True)
            with of_lanes(RANKS, LANES) as address:
                measure(name, address, opened=True, zoom=1, profile=profile)
        elif name == "ranks1000":
            print(f"{EVENTS:,} events over {MANY_RANKS:,} ranks, a row each:", flush=True)
            with of_lanes(MANY_RANKS, MANY_RANKS) as address:
                measure(name, address, opened=False, zoom=1, profile=profile)
        else:
            raise SystemExit(f"no such run: {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="files256|lanes512|ranks1000")
    parser.add_argument("--profile", type=Path, help="also write CPU profiles there")
    given = parser.parse_args()
    main(given.runs, given.profile)
