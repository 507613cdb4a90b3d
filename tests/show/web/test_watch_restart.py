"""The page of a watched job that torchrun starts again: a real one, followed as the browser does."""

from __future__ import annotations

import http.cookiejar
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import clean_environ
from tests.show.web.test_serve import serving

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="processes of Linux")]

WAIT_S = 300
JOB = """
import os, time, torch
import torch.distributed as dist
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
while not (first or os.path.exists("again")): time.sleep(0.05)
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
while True:
    time.sleep(0.03)
    optimizer.zero_grad(); model(torch.ones(2, 8)).square().sum().backward(); optimizer.step()
    ends = torch.tensor([float(os.path.exists("stop"))])
    dist.all_reduce(ends)
    if ends.item():
        break
    if first and dist.get_rank() == 1 and os.path.exists("fail"):
        raise ValueError("theirs")
dist.destroy_process_group()
"""


def states(address: str) -> Iterator[dict[str, Any]]:
    """What the page gets, as long as it is open."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    browser.open(address, timeout=WAIT_S).read()
    for line in browser.open(f"{address.partition('/?')[0]}/api/watch/events", timeout=WAIT_S):
        if line.startswith(b"data: ") and "ranks" in (state := json.loads(line[6:])):
            yield state


def test_the_page_follows_a_job_over_its_restart(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "rankscope", "run", "--watch", "--watch-windows", "0", "--run-dir", "run"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "job.py"]
    with (tmp_path / "job.log").open("wb") as log:
        job = subprocess.Popen(command, cwd=tmp_path, env=clean_environ(), stdout=log, stderr=log)
    try:
        while not list((tmp_path / "run" / "watch").glob("*.jsonl")):  # the log begins with the first steps
            with pytest.raises(subprocess.TimeoutExpired):
                job.wait(0.2)
        with serving(str(tmp_path / "run"), "--executor", "serial") as (_, address, _port):
            seen = states(address)
            before = next(each for each in seen if each["running"])
            assert (before["attempts"], before["hang"]) == (1, None)
            (tmp_path / "fail").touch()
            between = next(each for each in seen if each["restarting"])
            # It has failed, and does not hang.
            assert (between["running"], between["attempts"]) == (False, 1)
            assert (between["hang"] or {"hangs": False})["hangs"] is False
            assert {each["state"] for each in between["ranks"]} <= {"interrupted", "dead", "finished"}
            (tmp_path / "again").touch()
            after = next(each for each in seen if each["attempts"] == 2)
            after = next(each for each in seen if len(each["ranks"]) == 2)
            assert (after["running"], after["restarting"], after["hang"]) == (True, False, None)
            (tmp_path / "stop").touch()
            end = next(each for each in seen if not each["running"] and not each["restarting"])
            assert {each["state"] for each in end["ranks"]} == {"finished"}
        assert job.wait(WAIT_S) == 0, (tmp_path / "job.log").read_text()
    finally:
        (tmp_path / "stop").touch()
        job.kill()
        job.wait()
