"""A Chromium, and `rankscope serve` as a user starts it: what the browser's tests stand on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("RANKSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
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
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """Starts a server of a directory, once a session; gives the address that it prints."""
    cache = tmp_path_factory.mktemp("served-cache")
    running: dict[Path, tuple[subprocess.Popen[str], str]] = {}

    def start(folder: Path) -> str:
        if folder not in running:
            command = [sys.executable, "-m", "rankscope", "serve", str(folder), "--no-open", "--port", "0"]
            process = subprocess.Popen(
                [*command, "--executor", "serial"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "RANKSCOPE_CACHE": str(cache), "NO_COLOR": "1", "COLUMNS": "300"},
            )
            address = next((word for line in process.stdout or [] for word in line.split() if "?token=" in word), None)
            if address is None:
                process.wait(30)
                raise AssertionError(f"rankscope serve {folder} printed no address")
            running[folder] = (process, address)
        return running[folder][1]

    yield start
    for process, _ in running.values():
        process.send_signal(signal.SIGINT)
    for process, _ in running.values():
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
