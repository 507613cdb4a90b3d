"""The timeline inside the report: every event there, by plain unpacking; the page's answers those of the server."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import kineto
from tests.show.report.embedded_answers import write_answers
from tests.show.report.reading import inflated, read_block, read_report, unfold, unplanes
from tests.show.timeline.plain_timeline import counted, read
from tests.show.web.conftest import events

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RunClock, clock_of
from rankscope.results import Finding
from rankscope.show.report.embed import timeline as embedded_module
from rankscope.show.report.embed.encoding import fold, planes, steps_of
from rankscope.show.report.embed.timeline import embed_run, grid_of
from rankscope.show.report.html_report import write_report

UI = Path(__file__).resolve().parents[3] / "src" / "rankscope" / "show" / "web" / "ui"
FIXTURE = UI / "tests" / "embedded.json"
STAGE = {"stream": "device", "thread": "host", "annotation": "host", "python": "python"}


def head_of(blocks: dict[str, bytes]) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(inflated(blocks["timeline"]))
    return head


def unpacked(blocks: dict[str, bytes], rank: int) -> dict[str, list[tuple[int, int, str]]]:
    """Start, end and name of every event of a rank by kind of track, from the blocks alone, one after the other."""
    head = head_of(blocks)
    layout = head["layout"]
    found: dict[str, list[tuple[int, int, str]]] = {}
    at = dict.fromkeys(("device", "host", "python"), 0)
    first, count = next(row["tracks"] for row in layout["ranks"] if row["rank"] == rank)
    for track in layout["tracks"][first : first + count]:
        if track["kind"] == "rank":
            continue
        stage = STAGE[track["kind"]]
        meta, columns = read_block(blocks[f"{stage}-{rank}"])
        gap, duration, code = (columns[name].tolist() for name in ("gap", "duration", "code"))
        for lane in range(track["lanes"][0], sum(track["lanes"])):
            clock = layout["lanes"]["first_ns"][lane]
            for _ in range(layout["lanes"]["events"][lane]):
                start = clock + gap[at[stage]] * meta["unit"]
                clock = start + duration[at[stage]] * meta["unit"]
                name = head["names"][head["codes"]["name"][code[at[stage]]]]
                found.setdefault(track["kind"], []).append((start, clock, name))
                at[stage] += 1
            assert clock == layout["lanes"]["last_ns"][lane]
    return found


def in_files(run: Run, clock: RunClock, rank: int) -> Counter[tuple[int, int, str]]:
    """Start, end and name of every event of a rank's files, read in plain Python."""
    found: Counter[tuple[int, int, str]] = Counter()
    for window, trace in enumerate(run.loaded.ranks[rank]):
        events_of, _ = read(Path(trace.info.path))
        found += counted(events_of, clock.ranks[rank].bases[window])
    return found


# Drawing numbers is slow on a busy machine, and says nothing of what is tested.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(st.integers(0, 2**55 - 1), max_size=40),
    st.lists(st.integers(-(2**50), 2**50), max_size=40),
)
def test_numbers_come_back(positive: list[int], any_: list[int]) -> None:
    some, signed = np.array(positive, dtype=np.int64), np.array(any_, dtype=np.int64)
    assert unplanes(planes(some), some.size).tolist() == positive
    assert unfold(fold(signed)).tolist() == any_
    assert np.cumsum(unfold(steps_of(signed))).tolist() == any_


def test_what_has_no_planes_is_refused() -> None:
    with pytest.raises(ValueError, match="no planes"):
        planes(np.array([-1]))
    with pytest.raises(ValueError, match="no planes"):
        planes(np.array([1 << 56]))


def test_what_the_report_holds_of_the_longest_is_what_the_server_says(tmp_path: Path) -> None:
    """All of them fit here: arguments, shapes and stacks of every event but Python frames."""
    source = kineto.write_ranks(tmp_path / "run", {0: events(0), 1: events(100)})
    write_answers(source, tmp_path / "answers.json", 40)
    value = json.loads((tmp_path / "answers.json").read_text())
    blocks = {name: b64decode(data) for name, data in value["blocks"].items()}
    details = json.loads(inflated(blocks["details-0"]))
    answers = [each["json"] for each in value["asked"] if each["name"] == "event" and each["status"] == 200]
    gemm = next(
        each for each in details.values() if "Input" in json.dumps(each) or "input dims" in each.get("shapes", "")
    )
    assert gemm["shapes"].startswith("input dims: [[2,3],[3,4]]")
    assert any(each.get("stack") == ["train.py(7): step"] for each in details.values())
    assert any(answer["shapes"] for answer in answers)
    assert value["left_out"] == ["Arguments, shapes and stacks of all but the longest events (1000 per rank)."]


def test_ranks_that_findings_name_come_first_and_what_has_no_room_is_said(tmp_path: Path) -> None:
    content = {0: events(0), 1: events(400)}
    run = rankscope.open(kineto.write_ranks(tmp_path / "run", content), executor="serial")
    everything = embed_run(run, grid_of(run), 1 << 40)
    late = Finding("straggler", "warning", "Rank 1 delays the other ranks", ranks=(1,))
    assert embedded_module._priority([0, 1, 2], [late]) == [1, 0, 2]
    other = embedded_module._priority([0, 1], run.diagnose())[-1]
    # Room for all but what comes last.
    last = f"python-{other}"
    least = everything.size + embedded_module.SENTENCES
    assert embed_run(run, grid_of(run), least).blocks == everything.blocks
    without = embed_run(run, grid_of(run), least - embedded_module.size_of(everything.blocks[last]) // 2)
    assert set(without.blocks) == set(everything.blocks) - {last}
    assert without.size <= least
    tracks = head_of(everything.blocks)["layout"]["tracks"]
    frames = [track for track in tracks if track["kind"] == "python" and track["rank"] == other]
    lanes = head_of(everything.blocks)["layout"]["lanes"]["events"]
    count = sum(lanes[lane] for track in frames for lane in range(track["lanes"][0], sum(track["lanes"])))
    assert without.left_out[0] == f"Python frames of rank {other} ({count:,} events)."
    assert without.left_out[1:] == everything.left_out
    nothing = embed_run(run, grid_of(run), 0)
    assert set(nothing.blocks) == {"timeline"}
    assert nothing.left_out[0].startswith("All events of ranks 0–1 (")
    layout = head_of(nothing.blocks)["layout"]
    assert layout["tracks"] == []
    assert [row["tracks"] for row in layout["ranks"]] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_event_of_the_files_is_in_the_report(tmp_path: Path, ranks: int) -> None:
    content = {rank: events(100 * rank) for rank in range(ranks)}
    run = rankscope.open(kineto.write_ranks(tmp_path / "run", content), executor="serial")
    _, blocks = read_report(write_report(run))
    clock = clock_of(run)
    for rank in range(ranks):
        found = unpacked(blocks, rank)
        assert Counter(event for kind in found.values() for event in kind) == in_files(run, clock, rank)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_every_event_of_the_h100_is_in_the_report(shared_traces: Path) -> None:
    run = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")
    page = write_report(run)
    assert len(page) < 5_000_000
    _, blocks = read_report(page)
    assert head_of(blocks)["left_out"] == ["Arguments, shapes and stacks of all but the longest events (500 per rank)."]
    clock = clock_of(run)
    for rank in random.Random(1).sample(range(8), 2):
        found = unpacked(blocks, rank)
        assert Counter(event for kind in found.values() for event in kind) == in_files(run, clock, rank)


def answers_hold(answers: Path) -> None:
    """Runs the page's own answers against what the server said."""
    node = shutil.which("npx")
    if node is None or not (UI / "node_modules" / "vitest").exists():
        pytest.skip("the page's tests need Node and `make lint-ui` once")
    ran = subprocess.run(
        [node, "vitest", "run", "tests/embedded.test.ts"],
        cwd=UI,
        env={**os.environ, "RANKSCOPE_EMBEDDED": str(answers), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


def gloo(shared_traces: Path, folder: Path) -> Path:
    for rank in (0, 1):
        name = f"ddp_gpt_straggler_rank1.rank{rank}.json.gz"
        (folder / name).symlink_to(shared_traces / "gloo-2ranks" / name)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("what", ["h100", "gloo", "one rank", "simulated"])
def test_the_page_answers_from_the_report_as_the_server_does(what: str, shared_traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if what == "h100":
        folder = shared_traces / "modded-nanogpt-h100-8ranks"
    elif what == "gloo":
        gloo(shared_traces, folder)
    elif what == "one rank":
        folder = next((shared_traces / "tensorboard-plugin" / "resnet50_num_workers_4").glob("*.json*"))
    else:
        small = "--ranks 4 --steps 3 --layers 2 --kernels-per-layer 3 --microbatches 2"
        command = [sys.executable, "-m", "rankscope", "simulate", str(folder), *small.split()]
        subprocess.run(command, check=True, capture_output=True)
    counts = write_answers(folder, tmp_path / "answers.json", 60, seed=7)
    assert counts["tiles"] == counts["events"] == 60
    answers_hold(tmp_path / "answers.json")


def test_the_fixture_of_the_pages_own_tests_is_of_this_format() -> None:
    """`UPDATE_GOLDEN=1` writes it anew, from the small run of the server's tests."""
    if os.environ.get("UPDATE_GOLDEN"):
        with tempfile.TemporaryDirectory() as folder:
            source = kineto.write_ranks(Path(folder) / "run", {0: events(0), 1: events(100)})
            write_answers(source, FIXTURE, 8)
    value = json.loads(FIXTURE.read_text())
    assert json.loads(inflated(b64decode(value["blocks"]["timeline"])))["format"] == embedded_module.FORMAT
