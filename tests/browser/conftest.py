"""A Chromium, and `rankscope serve` as a user starts it: what the browser's tests stand on."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("RANKSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PRINTED_S = 120
HOW = "Debian: apt-get install chromium. Elsewhere name a Chromium or Chrome in RANKSCOPE_CHROMIUM"


@pytest.fixture(scope="module")  # there can be one at a time, and the report's tests have theirs
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the development requirements")
    if CHROMIUM is None:
        pytest.skip(f"no Chromium here. {HOW}")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Starts a server of a directory, once a session; gives the address that it prints, another one each time.

    An address opens one browser: the caller has to open it, for the next is printed then.
    """
    cache = tmp_path_factory.mktemp("served-cache")
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
                env={**os.environ, "RANKSCOPE_CACHE": str(cache), "NO_COLOR": "1", "COLUMNS": "300"},
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
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _addresses(process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
    """Hands on the addresses that a server prints, until it ends."""
    assert process.stdout is not None
    with process.stdout as out:
        for line in out:
            for word in line.split():
                if "?token=" in word:
                    said.put(word)
