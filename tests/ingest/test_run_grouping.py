"""Runs without run ids in one place: what keeps them apart, what keeps one run's windows together, what is doubtful."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.kineto import HOST_PID, kernel, op, step, trace, write

from rankscope.errors import RunSelectionError
from rankscope.ingest.identify import assign_ranks
from rankscope.ingest.run_grouping import Separated, separate_runs, told_apart
from rankscope.pipeline import open_run
from rankscope.store.trace_info import TraceInfo

S = 10**9
NOON = 1_790_000_000 * S


def window(
    path: str,
    rank: int | None,
    at_s: float,
    *,
    pid: int | None = None,
    steps: tuple[int, int] | None = (1, 3),
    threads: tuple[int, ...] = (),
    world: int | None = 2,
    host: str | None = None,
    backend: str | None = None,
    device: str = "",
) -> TraceInfo:
    """A file of two seconds."""
    return TraceInfo(
        path,
        rank=rank,
        world_size=world,
        host=host,
        backend=backend,
        pid=pid,
        threads=threads,
        first_step=steps[0] if steps else None,
        last_step=steps[1] if steps else None,
        start_ns=0,
        end_ns=2 * S,
        base_time_ns=NOON + int(at_s * S),
        devices=({"name": device},) if device else (),
    )


def parts(infos: list[TraceInfo]) -> list[list[str]]:
    """The paths of each run, however the files came."""
    found = separate_runs(infos)
    for seed in range(5):
        mixed = random.Random(seed).sample(infos, len(infos))
        assert [sorted(run.files) for run in separate_runs(mixed)] == [sorted(run.files) for run in found]
    return [sorted(run.files) for run in found]


def two_runs(**second: object) -> list[TraceInfo]:
    """Two ranks at noon, and again five seconds later."""
    made = [window(f"a.rank{rank}.json", rank, 0, pid=10 + rank) for rank in (0, 1)]
    again = {"pid": None, **second}
    for rank in (0, 1):
        pid = again["pid"]
        settings = again | {"pid": pid + rank if isinstance(pid, int) else None}
        made.append(window(f"b.rank{rank}.json", rank, 5, **settings))  # type: ignore[arg-type]
    return made


A, B = ["a.rank0.json", "a.rank1.json"], ["b.rank0.json", "b.rank1.json"]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"pid": 20}, "process of rank 0 (20 and 10)"),
        ({"pid": 10, "world": 4, "steps": (4, 6)}, "world size (4 and 2)"),
        ({"pid": None}, "steps of rank 0, which begin again in another process"),
    ],
)
def test_what_cannot_be_one_run(second: dict[str, object], why: str) -> None:
    assert parts(two_runs(**second)) == [A, B]
    first, last = separate_runs(two_runs(**second))
    assert (first.why, last.why) == ("", why)
    assert (first.label, last.label) == ("a", "b")
    (finding,) = told_apart([first, last], "b")
    assert (finding.id, finding.severity, finding.ranks) == ("runs-told-apart", "info", (0, 1))
    assert why in finding.title


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"host": "n1"}, {"host": "n2"}),
        ({"backend": "nccl"}, {"backend": "gloo"}),
        ({"device": "H100"}, {"device": "V"}),
    ],
)
def test_what_one_rank_cannot_change(one: dict[str, str], other: dict[str, str]) -> None:
    files = [window("a", 0, 0, steps=None, **one), window("b", 0, 9, steps=None, **other)]  # type: ignore[arg-type]
    assert parts(files) == [["a"], ["b"]]


def test_windows_of_one_process_stay_together_however_far_apart() -> None:
    files = [
        window(f"rank{rank}_{hour}.json", rank, 3600 * hour, pid=10 + rank, steps=(hour, hour))
        for rank in range(4)
        for hour in range(6)
    ]
    (run,) = separate_runs(files)
    assert (len(run.files), run.label, run.doubts, run.why) == (24, None, [], "")
    assert told_apart([run], None) == []
    # Nobody knows the process: rising steps are no contradiction.
    silent = [window(f"rank0_{hour}.json", 0, 3600 * hour, steps=(hour, hour)) for hour in range(3)]
    assert len(separate_runs(silent)) == 1


def test_a_second_profiler_in_one_process_is_the_same_run_and_doubtful() -> None:
    same = [window("a", 0, 0, pid=10, threads=(10, 77)), window("b", 0, 60, pid=10, threads=(10, 77, 80))]
    (run,) = separate_runs(same)
    (finding,) = told_apart([run], None)
    assert (finding.id, finding.severity) == ("run-doubtful", "warning")
    assert "the steps of rank 0 begin again" in finding.title
    # A container gives the same process ids anew, but no thread of the first lives on.
    other = [window("a", 0, 0, pid=10, threads=(10, 77)), window("b", 0, 60, pid=10, threads=(10, 78))]
    assert parts(other) == [["a"], ["b"]]


def test_ranks_go_to_the_run_of_their_time_even_if_they_are_first() -> None:
    # Rank 2 recorded in the second run alone, and began before the ranks that show that there are two.
    files = [
        window("x0", 0, 0, pid=1),
        window("x1", 1, 0.5, pid=2),
        window("y2", 2, 1000, pid=9),
        window("y0", 0, 1000.5, pid=3),
        window("y1", 1, 1001, pid=4),
    ]
    assert parts([*files, window("x3", 3, 0.2, pid=5)]) == [["x0", "x1", "x3"], ["y0", "y1", "y2"]]


def test_two_runs_of_several_windows_each() -> None:
    files = [
        window(
            f"{run}/iteration_{step}/rank{rank}_trace.json",
            rank,
            start + 100 * step,
            pid=pid + rank,
            steps=(step, step),
        )
        for run, start, pid in (("first", 0, 10), ("second", 40, 50))
        for step in (1, 2, 3)
        for rank in range(3)
    ]
    found = separate_runs(files)
    assert [(run.label, len(run.files)) for run in found] == [("first", 9), ("second", 9)]
    assert all(path.startswith(f"{run.label}/") for run in found for path in run.files)


def test_one_run_whose_ranks_recorded_at_different_times_is_doubtful() -> None:
    (run,) = separate_runs([window("a", 0, 0, pid=1), window("b", 1, 86_400, pid=2)])
    (finding,) = told_apart([run], None)
    assert finding.id == "run-doubtful"
    assert "86398 s lie between" in finding.title
    (run,) = separate_runs([window("a", 0, 0, pid=1), window("b", 1, 300, pid=2)])
    assert run.doubts == []


def test_files_without_a_rank() -> None:
    together = [window(f"h_{pid}.1.pt.trace.json", None, 0, pid=pid, world=None) for pid in (7, 8)]
    assert len(separate_runs(together)) == 1
    later = window("h_9.2.pt.trace.json", None, 4000, pid=9, world=None)
    assert parts([*together, later]) == [[info.path for info in together], [later.path]]
    # Another window of a process that is there: the same rank again.
    ranks, _ = assign_ranks([*together, window("h_7.2.pt.trace.json", None, 50, pid=7, world=None, steps=(4, 5))])
    assert {rank: len(files) for rank, files in ranks.items()} == {0: 2, 1: 1}


def test_copies_of_one_file_are_no_two_runs() -> None:
    (run,) = separate_runs([window("a/rank0", 0, 0, pid=1), window("b/rank0", 0, 0, pid=1)])
    assert len(run.files) == 2
    _, findings = assign_ranks(run.infos)
    assert [finding.id for finding in findings] == ["rank-conflict"]


def test_labels_are_unique_and_say_where_or_when() -> None:
    def labels(*infos: TraceInfo) -> list[str | None]:
        return [run.label for run in separate_runs(infos)]

    assert labels(window("t/x/rank0.json", 0, 0, pid=1), window("t/y/rank0.json", 0, 9, pid=2)) == ["x", "y"]
    assert labels(window("t/r0.json", 0, 0, pid=1), window("t/s0.json", 0, 9, pid=2)) == ["r0", "s0"]
    alike = [window("t/rank0.json", 0, 0, pid=1), window("t/rank_0.json", 0, 9, pid=2)]
    assert labels(*alike) == ["20260921T141320", "20260921T141329"]


def test_many_ranks_take_no_time() -> None:
    files = [
        window(f"{run}/rank{rank}.json", rank, 100 * run, pid=run * 5000 + rank)
        for run in (1, 2)
        for rank in range(1500)
    ]
    assert [len(run.files) for run in separate_runs(files)] == [1500, 1500]


def test_from_files_to_a_chosen_run(tmp_path: Path) -> None:
    for number, run in enumerate(("slow", "fast")):
        for rank in range(2):
            pid = HOST_PID + 10 * number + rank
            events = [step(1, 0, 100), {**op("aten::mm", 5, 9), "pid": pid, "tid": pid}, kernel("k", 20, 30)]
            made = trace(events, rank=rank, world_size=2, base_time_ns=NOON + number * 30 * S)
            write(tmp_path / "runs" / f"{run}-rank{rank}.json", made)
    folder = tmp_path / "runs"
    with pytest.raises(
        RunSelectionError, match=r"2 runs in here, the oldest first: slow: .*; fast: .* process of rank 0"
    ):
        open_run(folder).load()
    run = open_run(folder, run_id="fast").load()
    assert (run.ranks, run.run_id, run.name) == ([0, 1], None, "runs: fast")
    assert all(Path(info.path).name.startswith("fast") for info in run.traces)
    assert [info.pid for info in run.traces] == [110, 111]
    assert "runs-told-apart" in {finding.id for finding in run.findings}
    assert [Path(i.path).name for i in open_run(folder, run_id="slow").load().traces] == [
        "slow-rank0.json",
        "slow-rank1.json",
    ]
    assert open_run(folder, run_id="latest").load().name == "runs: fast"


def read(folder: Path) -> list[Separated]:
    from rankscope.ingest.discover import find_traces
    from rankscope.ingest.task import ingest_trace

    return separate_runs([ingest_trace(path).info for path in find_traces(folder).traces])


def test_real_runs_in_one_tree(shared_traces: Path) -> None:
    found = {run.label: run for run in read(shared_traces / "torchrec")}
    assert {label: sorted(run.ranks) for label, run in found.items()} == {  # type: ignore[type-var]
        "ddp-resnet18-2ranks": [0, 1],
        "rank2-sleeps-4ranks": [0, 1, 2, 3],
        "all-to-all-4ranks": [0, 1, 2, 3],
    }


@pytest.mark.slow
def test_real_runs_in_one_folder(shared_traces: Path) -> None:
    found = read(shared_traces / "gloo-2ranks")
    names = {path.name.partition(".")[0] for path in (shared_traces / "gloo-2ranks").glob("*.gz")}
    assert len(names) == 8
    assert [{Path(path).name.partition(".")[0] for path in run.files} for run in found] == [
        {name} for name in sorted(names, key=lambda name: [name in p for run in found for p in run.files].index(True))
    ]
    assert all(sorted(run.known) == [0, 1] for run in found)
    # Two windows of one process, eight minutes apart, that say no run and no rank of a job.
    (run,) = read(shared_traces / "tensorboard-plugin" / "resnet50_num_workers_0")
    assert (len(run.files), run.doubts, run.label) == (2, [], None)
    assert len(read(shared_traces / "modded-nanogpt-h100-8ranks")) == 1
    together = [shared_traces / name for name in ("modded-nanogpt-h100-8ranks", "torchrec", "hta/nccl_parser_config")]
    runs = separate_runs([info for folder in together for run in read(folder) for info in run.infos])
    assert sorted(len(run.files) for run in runs) == [1, 2, 4, 4, 8]


def test_hand_made_cases_of_one_process_are_told_apart_by_folder(shared_traces: Path) -> None:
    cases = shared_traces / "tensorboard-plugin" / "unit_tests"
    infos = [info for folder in cases.glob("test_*") for run in read(folder) for info in run.infos]
    assert [len(run.files) for run in separate_runs(infos)] == [2, 2, 2]
    assert {run.why for run in separate_runs(infos)} == {"folder"}
