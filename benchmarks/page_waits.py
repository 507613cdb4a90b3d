"""What a reader of the page waits for, against the aims of each.

- search: the first and a following answer over 10 million events, CPU of one thread; every name matches, or one does.
- frames: the 95th percentile of the script of a frame, panned and zoomed, with 150,000 rectangles and more in sight.
- selection: from the press on an event to its facts in the pane, in the page, the server's answer included.
- report: the report of 64 ranks, from its start to the first drawn lanes: script of the page and wall.
- ranks1024: `rankscope serve` on 1,024 cached ranks, to the layout and the first tiles of all of them.

CPU times are of the page's main thread (thread ticks of Chromium) and of the server's process: a busy machine makes
wall times longer, but not these.

    python -m benchmarks page_waits
    python -m benchmarks.page_waits search frames selection report ranks1024
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.page import LANES, RANKS, first_view, simulated
from benchmarks.page_client import (
    FRAMES,
    WALK,
    chromium,
    expand_all,
    of_files,
    of_lanes,
    script_seconds,
    settle,
    task_seconds,
)
from rankscope.show.timeline.search import Query, Search

PRESSES = 40
OPENINGS = 5
TALL = 1500
"""So high that more than 150,000 rectangles are in sight."""
MANY = "--ranks 1024 --steps 2 --mesh dp=128,tp=8 --layers 1"
SOME = "--ranks 64 --steps 6 --mesh dp=8,tp=8 --layers 2 --fault slow_device:rank=19,magnitude=0.1"

# Presses on places spread over the rows, and waits until the pane has the facts of another event.
PRESS = """async ([x, y]) => {
  const stage = document.querySelector('[data-testid=timeline-stage]');
  const pane = () => document.querySelector('[data-testid=selection]');
  const key = () => pane() && JSON.stringify(pane().dataset);
  const before = key(), begin = performance.now();
  const at = {clientX: x, clientY: y, bubbles: true, button: 0, pointerId: 1, isPrimary: true, pointerType: 'mouse'};
  const found = new Promise((done) => {
    const watch = new MutationObserver(() => { if (key() !== before && key()) end(performance.now() - begin); });
    const end = (took) => { watch.disconnect(); clearTimeout(timer); done(took); };
    const timer = setTimeout(() => end(null), 3000);
    watch.observe(document.body, {subtree: true, childList: true, attributes: true});
  });
  stage.dispatchEvent(new PointerEvent('pointerdown', {...at, buttons: 1}));
  stage.dispatchEvent(new PointerEvent('pointerup', {...at, buttons: 0}));
  stage.dispatchEvent(new MouseEvent('click', at));
  return found;
}"""


def search() -> None:
    """Every answer is of a new index, as for a text that was just typed."""
    timeline, _ = simulated()
    for what, text in (("one of 500 names", "kernel_0123"), ("every name", "kernel")):
        first, later = [], []
        for _ in range(OPENINGS):
            found = Search(timeline)
            begin = time.process_time()
            hit, count, _ = found.step(Query(text), (-(1 << 53), -1, -1), forward=True, rank=None)
            first.append(time.process_time() - begin)
            begin = time.process_time()
            found.step(Query(text), (hit["start_ns"], hit["lane"], hit["row"]), forward=True, rank=None)
            later.append(time.process_time() - begin)
        print(
            f"search for {what}: {count:,} hits, first {1e3 * np.median(first):.0f} ms of CPU, next "
            f"{1e3 * np.median(later):.1f} ms (aim 500)",
            flush=True,
        )


@contextmanager
def tab(address: str, height: int = 900) -> Iterator[Any]:
    """A page in headless Chromium, 1440 pixels wide."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page(viewport={"width": 1440, "height": height})
            if address:
                page.goto(address)
                page.wait_for_selector("#app[data-phase=ready]", timeout=600_000)
                page.goto(page.url.split("#")[0] + "#/timeline")
                settle(page)
            yield page
        finally:
            browser.close()


def frames() -> None:
    """All lanes of all ranks opened, 10 million events."""
    with of_lanes(RANKS, LANES) as address, tab(address, TALL) as page:
        expand_all(page)
        settle(page)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        for what, keys in (("moving", ["d", "a"]), ("zooming", ["w", "s"])):
            page.evaluate(WALK, [FRAMES, keys])
            stats = page.evaluate(WALK, [FRAMES, keys])
            middle, high = np.percentile(1e3 * cpu_of_frames(page, session, keys), (50, 95))
            print(
                f"frames, {what}: script p95 {high:.1f} ms of CPU, median {middle:.1f} (aim 16.7); by the page's clock "
                f"{stats['p95_ms']:.1f} and {stats['median_ms']:.1f}; at {stats['rectangles']:,} rectangles",
                flush=True,
            )


def cpu_of_frames(page: Any, session: Any, keys: list[str]) -> Any:
    """CPU seconds of the script of each of some frames."""
    spent = []
    for frame in range(FRAMES):
        before = script_seconds(session)
        page.evaluate(WALK, [1, [keys[frame % len(keys)]]])
        page.evaluate("() => new Promise(requestAnimationFrame)")
        spent.append(script_seconds(session) - before)
    return np.array(spent)


def selection() -> None:
    """Presses on events of the 64 ranks of a run from files."""
    with of_files(SOME) as address:
        press_events(address)


def press_events(address: str) -> None:
    """Prints how long the pane takes to follow a press."""
    server = next(each for each in psutil.Process().children() if "serve" in each.cmdline())
    with tab(address) as page:
        page.evaluate(WALK, [12, ["w"]])
        settle(page)
        box = page.locator("[data-testid=timeline-stage]").bounding_box()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        random = np.random.default_rng(3)
        waits, page_cpu, server_cpu = [], [], []
        for _ in range(PRESSES):
            x, y = random.uniform(0.05, 0.6), random.uniform(0.2, 0.9)
            before = task_seconds(session), sum(server.cpu_times()[:2])
            wait = page.evaluate(PRESS, [box["x"] + x * box["width"], box["y"] + y * box["height"]])
            if wait is not None:
                waits.append(wait)
                page_cpu.append(1e3 * (task_seconds(session) - before[0]))
                server_cpu.append(1e3 * (sum(server.cpu_times()[:2]) - before[1]))
            settle(page)
        named = {"wall": waits, "CPU of the page's main thread": page_cpu, "CPU of the server": server_cpu}
        for what, values in named.items():
            middle, high = np.percentile(values, (50, 95)) if values else (float("nan"), float("nan"))
            print(
                f"selection to pane: median {middle:.0f} ms, p95 {high:.0f} ms, {what} ({len(values)} presses; aim 100)"
            )


def report() -> None:
    """From the file's address to lanes on the screen."""
    with tempfile.TemporaryDirectory() as folder:
        run, file = Path(folder) / "run", Path(folder) / "report.html"
        command = [sys.executable, "-m", "rankscope"]
        subprocess.run([*command, "simulate", str(run), *SOME.split()], check=True, capture_output=True)
        subprocess.run([*command, "report", str(run), "-o", str(file)], check=True, capture_output=True)
        open_report(file)


def open_report(file: Path) -> None:
    """Prints how long a report's timeline takes to show its first lanes, and what is shown until then."""
    with tab("") as page:
        walls, tasks, first_words = [], [], []
        for _ in range(OPENINGS):
            page.goto("about:blank")
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            begin, before = time.perf_counter(), task_seconds(session)
            page.goto(f"{file.as_uri()}#/timeline", wait_until="commit")
            page.wait_for_selector("[data-testid=working], [data-testid=timeline-stage]", timeout=600_000)
            first_words.append(time.perf_counter() - begin)
            page.wait_for_selector("[data-testid=timeline-stage][data-settled=true]", timeout=600_000)
            walls.append(time.perf_counter() - begin)
            tasks.append(task_seconds(session) - before)
            session.detach()
        print(
            f"report, {file.stat().st_size / 1e6:.1f} MB: words after {np.median(first_words):.2f} s, lanes after "
            f"{np.median(walls):.2f} s (aim 2), {np.median(tasks):.2f} s of CPU of the page's main thread"
        )


def ranks1024() -> None:
    """The second opening: the first one fills the cache."""
    with tempfile.TemporaryDirectory() as folder:
        run, cache = Path(folder) / "run", Path(folder) / "cache"
        command = [sys.executable, "-m", "rankscope", "simulate", str(run), *MANY.split()]
        subprocess.run(command, check=True, capture_output=True)
        first_view(run, cache)
        many_ranks(run, cache)


def many_ranks(run: Path, cache: Path) -> None:
    """Prints the first view of a run that is in the cache."""
    views = [first_view(run, cache, until_ready=False) for _ in range(3)]
    middle = sorted(views, key=lambda view: view["timeline"])[1]
    print(
        f"1,024 cached ranks: page after {middle['page']:.2f} s, timeline of all after {middle['timeline']:.2f} s "
        f"({middle['cpu']:.2f} s of CPU; aim 3)"
    )


PARTS: dict[str, Callable[[], None]] = {each.__name__: each for each in (search, frames, selection, report, ranks1024)}


def main(wanted: list[str] | None = None) -> None:
    for name in wanted or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
