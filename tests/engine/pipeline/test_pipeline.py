"""From files to results: what bad input gives, from Python and on the command line; runs, windows, missing ranks."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kineto import dumps, kernel, small_step, step, trace, write, write_ranks
from tests.kineto import memory as memory_event

import rankscope.cli as cli_module
from rankscope.analyses import get_analysis
from rankscope.engine.pipeline import graph, open_run, parse_steps, tasks
from rankscope.errors import ConfigError, NoTracesError, RankscopeError, RunSelectionError
from rankscope.jobs.run import JobResult
from rankscope.results import Finding, Inputs, Part, Tables, schema_of


def command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Run the command line in this process: exit status, standard output, standard error."""
    monkeypatch.setattr("sys.argv", ["rankscope", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    out, err = capfd.readouterr()
    return int(ended.value.code or 0), out, err


def finding(findings: list[Finding] | tuple[Finding, ...], kind: str) -> Finding:
    (found,) = [each for each in findings if each.id == kind]
    return found


GOOD = dumps(trace(small_step(), rank=0, world_size=1))

# What the folder holds, and what the error must say of which file.
FATAL: dict[str, tuple[dict[str, bytes], str, str]] = {
    "an empty directory": ({}, "no trace in this directory", "run"),
    "no trace in it": ({"notes.txt": b"x", "model.pt": b"PK"}, "no trace in this directory", "run"),
    "not JSON": ({"rank0.json": b"loss 0.1\nloss 0.2"}, "not JSON: it starts with 'loss 0.1", "rank0.json"),
    "JSON that is no trace": ({"rank0.json": b'{"lr": 0.1}'}, "it has no `traceEvents` (it has 'lr')", "rank0.json"),
    "an empty file": ({"rank0.json": b""}, "the file is empty", "rank0.json"),
    "a trace without events": ({"rank0.json": b'{"traceEvents": []}'}, "an empty list of events", "rank0.json"),
    "a list that is no trace": ({"rank0.json": b'[{"a": 1}, {"b": 2}]'}, "none has a `ph`", "rank0.json"),
    "a cut gz alone": ({"rank0.json.gz": gzip.compress(GOOD)[:12]}, "ends before its first", "rank0.json.gz"),
    "a pickle": ({"rank0.json": b"\x80\x05K\x01."}, "this is a pickle", "rank0.json"),
    "an execution trace": ({"rank0.json": b'{"schema": "1", "nodes": []}'}, "execution trace", "rank0.json"),
    "several that are none": ({"a.json": b"{}", "b.json": b"[1]"}, "none of 2 files is a trace", "a.json"),
}


def test_what_reads_dumps_of_the_flight_recorder_is_named(tmp_path: Path) -> None:
    (tmp_path / "_dump_3").write_bytes(b"\x80\x05K\x01.")
    with pytest.raises(RankscopeError) as caught:
        open_run(tmp_path).load()
    assert f"rankscope hang {tmp_path}" in str(caught.value.hint)


@pytest.mark.parametrize("case", FATAL)
def test_fatal_input(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, words, file = FATAL[case]
    folder = tmp_path / "run"
    folder.mkdir()
    for name, data in files.items():
        write(folder / name, data, None)
    with pytest.raises(RankscopeError) as caught:
        open_run(folder).load()
    assert words in caught.value.what
    assert file in str(caught.value)
    assert caught.value.hint
    for arguments in (["summary", str(folder)], ["analyze", "device_time", str(folder), "--format", "json"]):
        status, out, err = command(capfd, monkeypatch, *arguments)
        assert (status, out) == (2, "")
        assert "Traceback" not in err
        assert words in err
        assert file in err
        assert "→" in err


def test_no_such_path(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for path, words in (("none", "no such file or directory"), ("none*.json", "nothing matches this pattern")):
        with pytest.raises(NoTracesError, match=words):
            open_run(tmp_path / path)
        status, out, err = command(capfd, monkeypatch, "summary", str(tmp_path / path))
        assert (status, out) == (2, "")
        assert "Traceback" not in err
        assert words in err
        assert path in err
        assert "→" in err
    with pytest.raises(NoTracesError, match="no path was given"):
        open_run([])


def test_a_cut_gz_among_good_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_ranks(tmp_path / "run", {rank: small_step() for rank in range(4)})
    (folder / "rank3.json").unlink()
    many = [kernel(f"kernel {number}", number, 1) for number in range(3000)]
    packed = gzip.compress(dumps(trace(many, rank=3, world_size=4)))
    write(folder / "rank3.json.gz", packed[: len(packed) // 2], None)
    run = open_run(folder)
    assert run.device_time()["rank"].to_list() == [0, 1, 2, 3]
    loss = finding(run.findings, "trace-truncated")
    assert (loss.severity, loss.ranks) == ("error", (3,))
    assert loss.title.startswith("rank3.json.gz ends too early: ")
    assert loss.evidence[0].value == str(folder / "rank3.json.gz")
    assert 100 < {each.name: each.value for each in loss.evidence}["events read"] < 3000  # type: ignore[operator]
    assert "Copy the file again" in loss.advice
    status, out, err = command(capfd, monkeypatch, "summary", str(folder))
    assert status == 0
    # A long path is folded to the terminal's width.
    assert "rank3.json.gz" in "".join((out + err).split())
    assert "Traceback" not in err


def test_a_file_cut_before_its_first_event_among_good_ranks(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    write(folder / "rank1.json", b'{"schemaVersion": 1, "traceEv', None)
    for source in (folder, [folder / "rank0.json", folder / "rank1.json"]):
        run = open_run(source).load()
        assert run.ranks == [0]
        kind = "not-a-trace" if source == folder else "trace-unreadable"
        assert "rank1.json" in finding(run.findings, kind).title
        assert finding(run.findings, "missing-ranks").ranks == (1,)


def test_json_beside_the_traces_is_left_out_and_said(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step()})
    write(folder / "config.json", {"lr": 0.1})
    run = open_run(folder).load()
    assert run.ranks == [0]
    beside = finding(run.findings, "not-a-trace")
    assert (beside.severity, "config.json" in beside.title) == ("info", True)
    for number in range(40):
        write(folder / "settings" / f"{number}.json", {"lr": 0.1})
    (many,) = [each for each in open_run(folder).load().findings if each.id == "not-a-trace"]
    assert many.title.startswith("41 files are not traces and were left out; the first, config.json: ")


def test_what_a_measurement_leaves_beside_its_traces_is_no_matter(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "jobs" / "overhead" / "job-0", {0: small_step()})
    others = ("plan.json", "measured/rank0.json", "../settings.json", "../../../overhead.json", "../../../binding.json")
    for name in others:
        (folder / name).parent.mkdir(exist_ok=True)
        write(folder / name, {"schema": 1, "out": "x"})
    run = open_run(tmp_path).load()
    assert run.ranks == [0]
    assert not [each for each in run.findings if each.id == "not-a-trace"]
    # A trace that is called so is read.
    (folder / "rank0.json").rename(tmp_path / "profiler.json")
    assert open_run(tmp_path).load().ranks == [0]


def test_two_files_that_claim_one_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / "run" / name, trace(small_step(), rank=0, world_size=1))
    run = open_run(tmp_path / "run").load()
    conflict = finding(run.findings, "rank-conflict")
    assert (conflict.severity, conflict.ranks) == ("error", (0,))
    assert conflict.title == "Two traces of rank 0 overlap in time: a.json is read, b.json is left out"
    assert conflict.advice
    status, out, err = command(capfd, monkeypatch, "summary", str(tmp_path / "run"))
    assert status == 0
    assert "b.json" in "".join((out + err).split())


def test_no_distributed_info(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        write(tmp_path / "run" / name, trace(small_step()))
    run = open_run(tmp_path / "run").load()
    assert run.ranks == [0, 1]
    guess = finding(run.findings, "rank-guessed")
    assert guess.ranks == (0, 1)
    assert "one.json" in str(guess.evidence[0].value)
    assert guess.advice
    assert run.world_size is None


def own(run_id: str, rank: int, world_size: int = 2) -> dict[str, Any]:
    return {"rankscope": {"schema_version": 1, "run_id": run_id, "rank": rank, "world_size": world_size}}


def test_runs_of_several_directories_are_called_by_them(tmp_path: Path) -> None:
    for run_id in ("morning-1", "evening-2"):
        write(tmp_path / "runs" / run_id / "rank0.json", trace(small_step(), **own(run_id, 0)))
    folders = [tmp_path / "runs" / run_id for run_id in ("morning-1", "evening-2")]
    for places in (folders, [folder / "rank0.json" for folder in folders]):
        with pytest.raises(RunSelectionError, match="there are 2 runs in here") as caught:
            open_run(places).load()
        assert caught.value.path == str(tmp_path / "runs")
        assert [known.path for known in caught.value.known] == ["evening-2", "morning-1"]


def test_several_runs_must_be_chosen_from(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("morning-1", "evening-2"):
        for rank in range(2):
            write(tmp_path / "runs" / f"{run_id}.rank{rank}.json", trace(small_step(), **own(run_id, rank)))
    write(tmp_path / "runs" / "old.json", trace(small_step()))
    with pytest.raises(RunSelectionError, match="there are 3 runs in here") as caught:
        open_run(tmp_path / "runs").load()
    assert "--run" in (caught.value.hint or "")
    for chosen in ("morning-1", "morn"):
        run = open_run(tmp_path / "runs", run_id=chosen).load()
        assert (run.run_id, run.ranks) == ("morning-1", [0, 1])
    assert open_run(tmp_path / "runs", run_id="(no id)").load().ranks == [0]
    with pytest.raises(RunSelectionError, match="no run has the name, id or directory 'night'"):
        open_run(tmp_path / "runs", run_id="night").load()
    with pytest.raises(RunSelectionError, match="several runs have the name"):
        open_run(tmp_path / "runs", run_id="").load()
    write(tmp_path / "runs" / "night.json", trace(small_step(50_000.0), **own("night-3", 0)))
    assert open_run(tmp_path / "runs", run_id="latest").load().run_id == "night-3"
    status, _, err = command(capfd, monkeypatch, "summary", str(tmp_path / "runs"))
    assert status == 2
    assert "evening-2" in err
    status, _, _ = command(capfd, monkeypatch, "summary", str(tmp_path / "runs"), "--run", "evening")
    assert status == 0


def test_steps_that_are_not_there_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "rank0.json", trace(small_step(0.0, 4)))
    for steps in ("7", "5:", ":3"):
        with pytest.raises(ConfigError, match="there is no step") as caught:
            open_run(file, steps=steps).load()
        assert caught.value.hint == "they have steps 4 to 4"
    assert open_run(file, steps="3:4").step_time()["step"].to_list() == [4]
    status, _, err = command(capfd, monkeypatch, "summary", str(file), "--steps", "7")
    assert status == 2
    assert "they have steps 4 to 4" in err


def test_a_rank_whose_file_breaks_off_is_left_out_of_the_overview(tmp_path: Path) -> None:
    for rank in range(3):
        made = [step for number in range(3) for step in small_step(1000.0 * number, number)]
        write(tmp_path / "whole" / f"rank{rank}.json", trace(made, rank=rank, world_size=3))
        file = write(tmp_path / "cut" / f"rank{rank}.json", trace(made, rank=rank, world_size=3))
        if rank == 2:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    whole, cut = (open_run(tmp_path / name).overview().row(0, named=True) for name in ("whole", "cut"))
    assert cut == whole
    run = open_run(tmp_path / "cut").load()
    (loss,) = [finding for finding in run.findings if finding.id == "trace-truncated"]
    assert loss.ranks == (2,)
    assert {evidence.name: evidence.value for evidence in loss.evidence}["events after the break"] == "unknown"


def test_where_no_file_is_whole_the_overview_counts_what_there_is_and_says_so(tmp_path: Path) -> None:
    made = [step for number in range(3) for step in small_step(1000.0 * number, number)]
    for rank in range(2):
        file = write(tmp_path / "cut" / f"rank{rank}.json", trace(made, rank=rank, world_size=3))
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        run = open_run(tmp_path / "cut")
        assert (run.overview()["ranks"].to_list(), run.overview()["step_ns"].null_count()) == ([rank + 1], 0)
        losses = [each.title for each in run.findings if each.id == "trace-truncated"]
        assert len(losses) == rank + 1
        assert all("the overview includes the rank" in title and "leaves" not in title for title in losses)
    write(tmp_path / "cut" / "rank2.json", trace(made, rank=2, world_size=3))
    losses = [each.title for each in open_run(tmp_path / "cut").load().findings if each.id == "trace-truncated"]
    assert len(losses) == 2
    assert all("the overview leaves the rank out" in title for title in losses)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that everybody may enter, and this process as somebody without rights of root's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    before = os.geteuid() if hasattr(os, "geteuid") else None
    if before is None:
        pytest.skip("rights are otherwise here")
    cli_module.make_app()  # Python's own modules may lie where only root may read
    if before == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if before == 0:
            os.seteuid(0)
        for path in folder.rglob("*"):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_directory_without_rights_is_said_to_be_one(
    unprivileged: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = unprivileged / "run" / "closed"
    write(closed / "rank0.json", trace(small_step(), rank=0))
    closed.chmod(0)
    for source in (closed, unprivileged / "run", closed / "rank0.json", closed / "*.json"):
        with pytest.raises(NoTracesError, match="cannot be read: permission denied") as caught:
            open_run(source)
        assert str(caught.value.path).startswith(str(closed))
    for name in ("summary", "findings", "report", "serve"):
        status, out, err = command(capfd, monkeypatch, name, str(closed))
        assert (status, out) == (2, "")
        assert "permission denied" in err


def test_a_directory_without_rights_next_to_others_is_reported(
    unprivileged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKSCOPE_CACHE", str(unprivileged / "cache"))
    write(unprivileged / "run" / "rank0.json", trace(small_step(), rank=0))
    (unprivileged / "run" / "closed").mkdir(mode=0)
    loss = finding(open_run(unprivileged / "run", executor="serial").load().findings, "trace-unreadable")
    assert str(unprivileged / "run" / "closed") in loss.title
    assert "permission denied" in loss.title


def test_several_sources_and_what_a_launch_gave(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"host{rank}" / "t.json", trace(small_step(), **own("r", rank)))
    assert open_run(tmp_path / "host0", tmp_path / "host1").load().ranks == [0, 1]
    job = JobResult(0, tmp_path / "host1", "r", "")
    assert open_run(job).load().ranks == [1]
    assert open_run(job).name == "host1"
    assert open_run(tmp_path / "host0", tmp_path / "host1").name == "host0 and 1 more"


def test_two_hosts_with_parts_of_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"host{rank}" / "t.json", trace(small_step(), **own("r", rank)))
    run = open_run([tmp_path / "host0", tmp_path / "host1"]).load()
    assert (run.run_id, run.ranks, run.missing_ranks) == ("r", [0, 1], [])


def test_windows_of_one_rank(tmp_path: Path) -> None:
    for number in range(2):
        made = small_step(1000.0 * number, number)
        for rank in range(2):
            name = f"rank{rank}_iter{number}_{number}.trace.json"
            write(tmp_path / "run" / name, trace(made, rank=rank, world_size=2))
    run = open_run(tmp_path / "run").load()
    assert [[trace.info.first_step for trace in run.loaded.ranks[rank]] for rank in run.ranks] == [[0, 1], [0, 1]]
    frame = run.step_time()
    assert frame.select("rank", "window", "step").rows() == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]
    assert run.findings == []


def test_who_wrote_the_traces(tmp_path: Path) -> None:
    """Torch's own profiler leaves no name; what carries rankscope's metadata was captured or simulated by it."""
    for name, metadata, words in (
        ("torch", None, ["PyTorch's profiler, without rankscope"]),
        ("ours", {"run_id": "r", "rank": 0}, ["rankscope's Profiler"]),
        ("made", {"run_id": "r", "rank": 0, "launcher": "simulate"}, ["rankscope simulate"]),
    ):
        more = {} if metadata is None else {"rankscope": metadata}
        write(tmp_path / name / "rank0.json", trace([kernel("k", 0, 1)], rank=0, **more))
        assert open_run(tmp_path / name, executor="serial").written_by == words
    manifest = {"run_id": "r", "versions": {"rankscope": "9.9", "torch": "2.13.0", "python": "3.11"}}
    (tmp_path / "ours" / "run.json").write_text(json.dumps(manifest))
    assert open_run(tmp_path / "ours", executor="serial").written_by == [
        "rankscope's Profiler",
        "rankscope 9.9 and torch 2.13.0",
    ]


def test_missing_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for rank in (0, 2):
        write(folder / f"rank{rank}.json", trace(small_step(), **own("r", rank, 4)))
    run = open_run(folder).load()
    assert run.missing_ranks == [1, 3]
    missing = finding(run.findings, "missing-ranks")
    assert (missing.severity, missing.ranks) == ("warning", (1, 3))
    write(folder / "run.json", {"schema_version": 1, "run_id": "r", "world_size": 4, "ranks": "every:2"})
    missing = finding(open_run(folder).load().findings, "missing-ranks")
    assert (missing.severity, missing.ranks) == ("info", (1, 3))
    assert missing.title == "2 of 4 ranks were not recorded: ranks every:2 were chosen"
    # A rank that was chosen and has no trace is lost.
    (folder / "rank2.json").unlink()
    run = open_run(folder).load()
    assert run.missing_ranks == [2]
    found = {each.severity: each.ranks for each in run.findings if each.id == "missing-ranks"}
    assert found == {"info": (1, 3), "warning": (2,)}


def test_a_world_too_great_to_count_to(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace(small_step(), rank=0, world_size=10**15))
    run = open_run(tmp_path).load()
    assert (run.world_size, run.missing_ranks) == (None, [])


def test_what_the_ranks_gave_serves_again_where_the_reduce_alone_is_asked_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[str] = []
    analyze = graph.analyze_rank
    monkeypatch.setattr(
        graph, "analyze_rank", lambda wanted, *rest: mapped.extend(n for n, _ in wanted) or analyze(wanted, *rest)
    )
    run = open_run(write_ranks(tmp_path / "run", {0: small_step(), 1: small_step(waiting=10)}), executor="serial")
    whole = run.stragglers()
    by_step = run.stragglers(by="step")
    assert mapped.count("stragglers") == 2  # once a rank
    assert whole["step"].null_count() == whole.height
    assert by_step["step"].to_list() == [1, 1]
    assert run.operators(by="name").height
    assert run.operators(by="shape").height
    assert mapped.count("operators") == 4  # its map looks at it


def test_an_analysis_of_tables_without_rows_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = get_analysis("memory")
    with_memory = write_ranks(
        tmp_path / "with", {0: [*small_step(), memory_event(20, 4096, allocated=4096, reserved=8192)]}
    )
    without = write_ranks(tmp_path / "without", {0: small_step()})
    called: list[int] = []

    def counted(tables: Tables, inputs: Inputs) -> Part:
        called.append(inputs.rank)
        return memory.per_rank(tables, inputs)

    monkeypatch.setattr(tasks, "get_analysis", lambda name: replace(get_analysis(name), per_rank=counted))
    frame = open_run(without, executor="serial").memory()
    assert (frame.height, frame.schema, called) == (0, schema_of(memory.columns), [])
    assert open_run(with_memory, executor="serial").memory().height == 1
    assert called == [0]


def test_progress_is_told(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    calls: list[tuple[str, int, int, int]] = []
    open_run(folder, progress=lambda *each: calls.append(each)).load()
    assert [each[:3] for each in calls] == [("reading", 0, 2), ("reading", 1, 2), ("reading", 2, 2)]
    assert calls[-1][3] == sum((folder / f"rank{rank}.json").stat().st_size for rank in range(2))


def test_names_of_other_people_stay_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "[red]\x1b]8;;http://x\x1b\\[/nothing]\x1b[2J"
    file = write(tmp_path / "[bold]rank0.json", trace([step(1, 0, 10), kernel(evil, 1, 5)], rank=0))
    for arguments in (["summary", str(file)], ["analyze", "kernels", str(file)], ["summary", str(file) + evil]):
        status, out, err = command(capfd, monkeypatch, *arguments)
        assert status in (0, 2)
        assert "Traceback" not in err
        assert "\x1b]8" not in out + err
        assert "\x1b[2J" not in out + err


@pytest.mark.parametrize(
    ("text", "steps"),
    [("10:12", (10, 12)), ("10:", (10, None)), (":12", (None, 12)), ("10", (10, 10)), (None, None), (":", None)],
)
def test_steps(text: str | None, steps: object) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["a", "1:b", "12:10", "1:2:3", "1-2"])
def test_steps_that_are_not_valid(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_steps(text)


def test_options_that_are_not_valid(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace(small_step()))
    with pytest.raises(ConfigError, match="not a regular expression"):
        open_run(tmp_path, communication="(")
    with pytest.raises(ConfigError, match="no executor"):
        open_run(tmp_path, executor="dusk").load()
    with pytest.raises(AttributeError, match="no analysis 'nothing'"):
        _ = open_run(tmp_path).nothing


def test_json_of_a_result_carries_the_findings_of_reading(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 2: small_step()})
    status, out, _ = command(capfd, monkeypatch, "analyze", "device_time", str(folder), "--format", "json")
    assert status == 0
    written = json.loads(out)
    assert [each["id"] for each in written["findings"]] == ["missing-ranks"]
    assert written["run"]["missing_ranks"] == [1]
