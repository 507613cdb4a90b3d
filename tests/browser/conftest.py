"""A Chromium, and `rankscope serve` as a user starts it: what the browser's tests stand on."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.page import CHROMIUM, HOW, WAIT_MS, Page
from tests.kineto import annotation, collective, frame, kernel, launch, memory, op, step, write_ranks

PRINTED_S = 300


@pytest.fixture(scope="module")  # there can be one at a time, and the report's tests have theirs
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


@pytest.fixture(scope="session")
def serve(session_cache: Path) -> Iterator[Callable[..., str]]:
    """Starts a server of a directory, once a session; gives the address that it prints, another one each time.

    An address opens one browser: the caller has to open it, for the next is printed then.
    """
    running: dict[tuple[Path, tuple[str, ...]], tuple[subprocess.Popen[str], queue.Queue[str]]] = {}

    def start(folder: Path, *options: str) -> str:
        key = (folder, options)
        if key not in running:
            command = [sys.executable, "-m", "rankscope", "serve", str(folder), "--no-open", "--port", "0", *options]
            process = subprocess.Popen(
                [*command, "--executor", "serial"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "RANKSCOPE_CACHE": str(session_cache), "NO_COLOR": "1", "COLUMNS": "300"},
            )
            said: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_addresses, args=(process, said), daemon=True).start()
            running[key] = process, said
        try:
            return running[key][1].get(timeout=PRINTED_S)
        except queue.Empty:
            raise AssertionError(f"rankscope serve {folder} printed no further address") from None

    yield start
    for process, _ in running.values():
        process.send_signal(signal.SIGINT)
    for process, _ in running.values():
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def opened(browser: Any, serve: Callable[..., str]) -> Iterator[Callable[..., Page]]:
    """Opens pages on served directories; all are closed when the test ends."""
    pages: list[Page] = []

    def start(folder: Path, *options: str, **more: Any) -> Page:
        pages.append(Page(browser, serve(folder, *options), **more))
        return pages[-1]

    yield start
    for page in pages:
        page.close()


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """A run by the name of its fixture; what is not asked for is not made."""
    return request.getfixturevalue


def late_events(rank: int) -> list[dict[str, Any]]:
    """Eight steps of 1 ms, with stacks and memory; rank 1 is late to each collective, most in step 14."""
    found: list[dict[str, Any]] = []
    for number in range(8):
        at = 1000.0 * number
        behind = 0 if rank == 0 else (350 if number == 4 else 250)
        found += [
            step(10 + number, at, 990),
            op("aten::mm", at + 10, 100, external=10 * number + 1, **{"Input Dims": [[2, 3], [3, 4]]}),
            launch(at + 30, 5, correlation=10 * number + 1, external=10 * number + 1),
            frame("train.py(7): step", at + 5, 900, python_id=2 * number + 1),
            frame("nn.Module: Linear_0", at + 8, 300, python_id=2 * number + 2, parent=2 * number + 1),
            kernel("gemm<4>", at + 100, 80 + behind, correlation=10 * number + 1, external=10 * number + 1),
            launch(at + 130, 5, correlation=10 * number + 2),
            collective(at + 200 + behind, 500 - behind, sequence=number, correlation=10 * number + 2),
            annotation("forward", at + 600, 100),
            memory(at + 15, 1024, allocated=1024 * (number + 1), reserved=1 << 20),
        ]
    return found


@pytest.fixture(scope="session")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ranks(tmp_path_factory.mktemp("late") / "run", {rank: late_events(rank) for rank in (0, 1)})


@pytest.fixture(scope="session")
def h100(shared_traces: Path) -> Path:
    return shared_traces / "modded-nanogpt-h100-8ranks"


@pytest.fixture(scope="session")
def single(shared_traces: Path) -> Path:
    return shared_traces / "hta" / "ns_resolution_trace"


@pytest.fixture(scope="session")
def cpu(shared_traces: Path) -> Path:
    return shared_traces / "hta" / "cpu_only"


@pytest.fixture(scope="session")
def ranks258(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More ranks than are shown in a row each at first; rank 77 is the straggler."""
    folder = tmp_path_factory.mktemp("simulated") / "run"
    shape = "--ranks 258 --steps 3 --mesh dp=43,tp=6 --layers 1 --kernels-per-layer 2 --microbatches 1"
    command = [sys.executable, "-m", "rankscope", "simulate", str(folder), *shape.split()]
    subprocess.run([*command, "--fault", "slow_device:rank=77,magnitude=2"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def gloo(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks on CPU, one of which sleeps in its loader."""
    folder = tmp_path_factory.mktemp("gloo") / "straggler"
    folder.mkdir()
    for rank in (0, 1):
        name = f"ddp_gpt_straggler_rank1.rank{rank}.json.gz"
        (folder / name).symlink_to(shared_traces / "gloo-2ranks" / name)
    return folder


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks whose kernels, operators, modules, files, hosts and devices are named to do harm, and a broken file."""
    from tests import kineto
    from tests.analyses.reference import rank_events
    from tests.show.report.test_html_report import HOSTILE

    names = ["<img src=x onerror=alert(1)>", *HOSTILE]
    folder = tmp_path_factory.mktemp("hostile") / "<b>run"
    for rank in (0, 1):
        events = rank_events(rank)
        for number, name in enumerate(names):
            at = 1500 + 20 * number
            events.append(kineto.kernel(name, at, 10, stream=30 + number))
            events.append(kineto.op(name, at, 10))
            events.append(kineto.annotation(name, at, 5))
            events.append(kineto.collective(1500, 10, kind=name, group=name, description=name, stream=60 + number))
            for depth, of in enumerate((f"nn.Module: {name}", f"{name}/evil.py(7): {name}")):
                events.append(kineto.frame(of, at + depth, 18 - 4 * depth, python_id=2 * number + depth + 1))
        content = kineto.trace(
            events, rank=rank, world_size=2, host_name=names[0], deviceProperties=[{"name": names[2]}]
        )
        kineto.write(folder / f"<img src=x onerror=alert({rank})>_rank{rank}.json", content)
    (folder / "<script>alert(2)<\u2044script>_rank7.json").write_text('{"traceEvents": [{"ph": "X"')
    return folder


def _addresses(process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
    """Hands on the addresses that a server prints, until it ends."""
    assert process.stdout is not None
    with process.stdout as out:
        for line in out:
            for word in line.split():
                if "?token=" in word:
                    said.put(word)
