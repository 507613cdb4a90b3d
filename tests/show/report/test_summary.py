"""The verdict: its figures worked by hand, one screen whatever the run holds, and no name obeyed."""

from __future__ import annotations

import io
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests import kineto
from tests.analyses.reference import rank_events, write_reference
from tests.analyses.test_memory_snapshot import a_snapshot
from tests.answers.watch.jobs import MS, SimulatedJob
from tests.show.report.test_html_report import HOSTILE, hostile_run

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.show.report.summary import COLUMNS, LINES, summary

# What terminals obey: a color, a hyperlink (OSC 8) that shows another text, a title, a clearing of the screen.
OBEYED = [
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x9d8;;http://evil.example\x9cclick",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "[bold red]markup[/]",
    "[link=http://evil.example]click[/link]",
    "a\rb\nc\x0bd\u2028e",
    "\u202egnp.exe",
]
SGR = re.compile(r"\x1b\[[0-9;]*m")


def shown(run: Run, width: int = 80, *, colors: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=width, highlight=False, force_terminal=colors, color_system="256" if colors else None
    )
    console.print(summary(run, width))
    return out.getvalue().splitlines()


def of_ranks(folder: Path, by_rank: dict[int, list[kineto.Event]], width: int = 80, **metadata: object) -> list[str]:
    return shown(rankscope.open(kineto.write_ranks(folder, by_rank, **metadata), executor="serial"), width)


def line(lines: list[str], begin: str) -> str:
    found = [each for each in lines if each.startswith(begin)]
    assert len(found) == 1, (begin, lines)
    return found[0].rstrip()


def test_a_step_divides_into_what_the_device_did(tmp_path: Path) -> None:
    """Two steps of 1,000 µs: 500 of compute, 300 of communication (100 under compute), 100 of copies, 199 idle."""
    events = []
    for number, at in enumerate((0, 1000)):
        events += [
            kineto.step(10 + number, at, 1000),
            kineto.kernel("gemm", at, 500, correlation=10 * number + 1),
            kineto.collective(at + 400, 300, stream=20, correlation=10 * number + 2),
            kineto.memcpy(at + 700, 100, correlation=10 * number + 3),
            kineto.kernel("tail", at + 999, 1, correlation=10 * number + 4),
            *(kineto.launch(at + 1 + each, 1, correlation=10 * number + each) for each in (1, 2, 3, 4)),
        ]
    lines = of_ranks(tmp_path, {0: events})
    parts = {found.group(1): found.group(2) for each in lines if (found := re.match(r"  (\S.*?)  +([\d.]+) %", each))}
    assert "  mean over steps, 1.00 ms:" in [each.rstrip() for each in lines]
    assert parts == {
        "compute": "50.1",
        "exposed communication": "20.0",
        "copies": "10.0",
        "waiting for data": "0.0",
        "otherwise idle": "19.9",
    }
    assert line(lines, "overlap") == "overlap     33.3 % of communication overlaps with compute"
    assert "200 µs" in line(lines, "  exposed communication")
    assert line(lines, "step ") == "step        1.00 ms  median over 2 steps"
    assert line(lines, "stragglers") == "stragglers  one rank: nothing to compare it with"
    assert line(lines, "traces") == "traces      no problems found in 18 events and 8 launches"


def test_a_step_that_stands_out_is_named(tmp_path: Path) -> None:
    """Step 3 of five writes a checkpoint for 20 ms: the mean step has 4 ms of that, and the median none."""
    events, at = [], 0.0
    for number, length in enumerate((1000, 1000, 1000, 21_000, 1000)):
        events += [kineto.step(number, at, length), *kineto.small_step(at, number, correlation=10 * number + 1)[1:]]
        at += length
    lines = of_ranks(tmp_path, {0: events})
    assert line(lines, "step ") == "step        1.00 ms  median over 5 steps; step 3: 21.0 ms"


def test_figures_are_those_of_the_analyses(tmp_path: Path) -> None:
    run = rankscope.open(write_reference(tmp_path), executor="serial")
    overview = run.overview().row(0, named=True)
    lines = shown(run)
    assert f"{100 * overview['exposed_share']:.1f} %" in line(lines, "  exposed communication")
    assert f"{100 * overview['overlap_ratio']:.1f} %" in line(lines, "overlap")
    peak = run.memory().sort("peak_allocated", descending=True, nulls_last=True).row(0, named=True)
    assert f"on rank {peak['rank']} (" in line(lines, "memory")


def test_snapshots_without_traces_are_shown_as_such(tmp_path: Path) -> None:
    (tmp_path / "mem").mkdir()
    for rank in range(2):
        (tmp_path / "mem" / f"rank{rank}.memory.pickle").write_bytes(pickle.dumps(a_snapshot()))
    run = rankscope.open(tmp_path / "mem", executor="serial")
    text = " ".join(shown(run, 100))
    assert "Rank 0’s allocator reserves 1.50 kB" in text
    assert "rankscope analyze memory_snapshot --by stack" in text
    assert "CPU" not in text
    assert "not recorded" not in text
    assert run.diagnose() == []
    assert [each.why for each in run.diagnosis().not_judged] == ["memory snapshots hold no durations"]


def test_the_slowest_rank_is_named(tmp_path: Path) -> None:
    lines = of_ranks(tmp_path, {0: rank_events(0), 1: rank_events(1), 2: rank_events(0)})
    assert "rank 1" in " ".join(lines)
    named = rankscope.open(tmp_path, executor="serial").stragglers()["cause"].drop_nulls().len() > 0
    # Two steps: a difference may be chance.
    assert ("too few steps to tell" in line(lines, "stragglers")) is not named
    even = of_ranks(tmp_path / "even", {0: rank_events(0), 1: rank_events(0)})
    assert line(even, "stragglers") == "stragglers  too few steps to tell (about 15 would do)"


def test_what_was_lost_is_said(tmp_path: Path) -> None:
    lines = of_ranks(tmp_path, {rank: rank_events(int(rank == 20)) for rank in range(24) if rank not in (17, 18)})
    assert "ranks 0–16, 19–23 of 24" in lines[1]
    assert line(lines, "traces") == "traces      2 of 24 ranks have no trace here"


def test_a_run_without_steps_and_communication(tmp_path: Path) -> None:
    lines = of_ranks(tmp_path, {0: [kineto.kernel("gemm", 0, 50)]})
    assert "the recorded span: no steps are marked" in line(lines, "step ")
    assert "0.0 %" in line(lines, "  exposed communication")
    assert "overlap" not in "\n".join(lines)
    assert line(lines, "memory").startswith("memory      not recorded")


def test_ranges_alone_do_not_tell_what_a_step_was_spent_on(tmp_path: Path) -> None:
    """Such as a log of spans: an idle share of 100 % would be false."""
    lines = of_ranks(tmp_path / "spans", {0: [kineto.step(1, 0, 900), kineto.annotation("fwd_bwd", 10, 500)]})
    assert "900 µs" in line(lines, "step ")
    assert "not recorded" in line(lines, "  what it was spent on")
    assert not [each for each in lines if "%" in each]
    worked = [kineto.step(1, 0, 900), kineto.op("aten::mm", 10, 500)]
    assert "55.6 %" in line(of_ranks(tmp_path / "worked", {0: worked}), "  compute")


def test_a_trace_without_a_device_says_cpu(tmp_path: Path) -> None:
    host = [kineto.op("aten::mm", 0, 50), kineto.annotation("gloo:all_reduce", 40, 20, tid=9)]
    lines = of_ranks(tmp_path, {0: host})
    assert "CPU" in lines[1]


def obeyed_run(folder: Path) -> Run:
    events = rank_events(0)
    for number, name in enumerate([*OBEYED, *HOSTILE]):
        events += [
            kineto.kernel(name, 1500, 10, stream=30 + number),
            kineto.collective(1500, 10, kind=name, group=name, description=name, stream=90 + number),
            kineto.annotation(name, 1500, 100_000, tid=50 + number),
        ]
    by_rank = {0: events, 1: rank_events(1)}
    for rank, content in by_rank.items():
        devices = [{"name": OBEYED[rank]}]
        trace = kineto.trace(content, rank=rank, world_size=9, host_name=OBEYED[rank + 1], deviceProperties=devices)
        kineto.write(folder / f"[red]rank{rank}.json", trace)
    return rankscope.open(folder, executor="serial")


@pytest.mark.parametrize("width", [20, 60, 80, 100, 300])
@pytest.mark.parametrize("what", ["obeyed", "hostile", "reference"])
def test_one_screen_whatever_the_run_holds(tmp_path: Path, width: int, what: str) -> None:
    if what == "reference":
        run = rankscope.open(write_reference(tmp_path), executor="serial")
    else:
        run = obeyed_run(tmp_path) if what == "obeyed" else hostile_run(tmp_path)
    lines = shown(run, width)
    assert len(lines) <= LINES == 24
    assert max(cell_len(each.rstrip()) for each in lines) <= min(width, COLUMNS) <= 100


def test_no_name_is_obeyed(tmp_path: Path) -> None:
    """In color nothing but rich's own colors is an escape; markup in names is text."""
    run = obeyed_run(tmp_path)
    text = "\n".join(shown(run, 100, colors=True))
    assert "\x1b[" in text
    bare = SGR.sub("", text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", bare)
    assert "evil" not in bare or "]8;;" in bare  # shown as the text it is, not as a link
    assert "\x1b]" not in text
    plain = "\n".join(shown(run, 100))
    assert "\x1b" not in plain
    assert bare.split() == plain.split()


def test_in_a_pipe_it_is_plain(tmp_path: Path) -> None:
    folder = write_reference(tmp_path / "[bold]run[/]")
    command = [sys.executable, "-m", "rankscope", "summary", str(folder), "--executor", "serial"]
    environment = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "COLUMNS")}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = ran.stdout.splitlines()
    assert len(lines) <= 24
    assert "\x1b" not in ran.stdout
    assert lines[0].startswith(folder.name)


def test_the_log_of_a_watched_job_adds_what_few_recorded_steps_cannot_tell(tmp_path: Path) -> None:
    def slow(rank: int, _step: int, place: str) -> int:
        return 40 * MS if rank == 1 and place == "forward" else 0

    folder = kineto.write_ranks(tmp_path / "run", {rank: kineto.small_step() for rank in range(2)})
    command = [sys.executable, "-m", "rankscope", "summary", str(folder), "--executor", "serial"]
    without = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rank 1: it" not in without.stdout
    SimulatedJob(ranks=2, slow=slow).write(folder)
    text = " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert "Rank 1 delays the other ranks: it takes longer in forward (saves up to " in text
    excess = rankscope.open(folder, executor="serial").diagnosis().findings[0].evidence[0].value
    assert 38 * MS < float(excess) < 42 * MS
    (folder / "watch" / "rank0.jsonl").write_text("{")
    assert "rank 1: it" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout
