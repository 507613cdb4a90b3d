"""Which run a trace is of: by id, by directory, by name and time; and the choice between runs."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.kineto import HOST_PID, kernel, op, step, trace, write

from rankscope.engine.pipeline import open_run
from rankscope.errors import RunSelectionError
from rankscope.ingest.discover import find_traces
from rankscope.ingest.ranks import assign_ranks
from rankscope.ingest.run_findings import restarted_ranks
from rankscope.ingest.runs import group_by_run, with_lost_base_times
from rankscope.ingest.task import ingest_trace
from rankscope.results import Finding
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


def runs(infos: list[TraceInfo]) -> dict[str | None, list[str]]:
    """The paths of each run by its name, whatever the order of the files."""
    found = {name: sorted(info.path for info in own) for name, own in group_by_run(infos).runs.items()}
    for seed in range(5):
        again = group_by_run(random.Random(seed).sample(infos, len(infos))).runs
        assert {name: sorted(info.path for info in own) for name, own in again.items()} == found
    return found


def parts(infos: list[TraceInfo]) -> list[list[str]]:
    """The paths of each run."""
    return list(runs(infos).values())


def findings(infos: list[TraceInfo], name: str | None = None) -> list[Finding]:
    return group_by_run(infos).findings[name]


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
        ({"pid": 20}, "two processes of rank 0 (10 and 20)"),
        ({"pid": 10, "world": 4, "steps": (4, 6)}, "two world sizes (2 and 4)"),
        ({"pid": None}, "two processes of rank 0"),
    ],
)
def test_contradictions_divide_runs(second: dict[str, object], why: str) -> None:
    assert runs(two_runs(**second)) == {"a": A, "b": B}
    (finding,) = findings(two_runs(**second), "b")
    assert (finding.id, finding.severity, finding.ranks) == ("several-runs", "info", (0, 1))
    assert finding.title == f"There are 2 runs without a run id here, of which this is b: {why}"
    assert [(each.name, each.value) for each in finding.evidence] == [("a", 2), ("b", 2)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"host": "n1"}, {"host": "n2"}),
        ({"backend": "nccl"}, {"backend": "gloo"}),
        ({"device": "H100"}, {"device": "V"}),
    ],
)
def test_facts_that_a_rank_keeps(one: dict[str, str], other: dict[str, str]) -> None:
    files = [window("a", 0, 0, steps=None, **one), window("b", 0, 9, steps=None, **other)]  # type: ignore[arg-type]
    assert parts(files) == [["a"], ["b"]]


def test_windows_of_one_process_stay_together_however_far_apart() -> None:
    files = [
        window(f"rank{rank}_{hour}.json", rank, 3600 * hour, pid=10 + rank, steps=(hour, hour))
        for rank in range(4)
        for hour in range(6)
    ]
    assert {name: len(paths) for name, paths in runs(files).items()} == {None: 24}
    assert findings(files) == []
    # The process is not known: rising steps are not a contradiction.
    assert len(parts([window(f"rank0_{hour}.json", 0, 3600 * hour, steps=(hour, hour)) for hour in range(3)])) == 1


def test_a_profiler_per_epoch_is_one_run() -> None:
    epochs = [window(f"{n}", 0, 60 * n, pid=10, threads=(10, 77, 80 + n)) for n in range(3)]
    assert len(parts(epochs)) == 1
    assert findings(epochs) == []
    # Gloo's threads take turns: a short window may list one of them alone.
    apart = [window(f"{n}", 0, 60 * n, pid=4321, threads=(4321, 5000 + n)) for n in range(3)]
    assert len(parts(apart)) == 1
    assert findings(apart) == []
    # Without a thread that both list, a container may have given the process id twice.
    (finding,) = findings([window("a", 0, 0, pid=10, threads=(10,)), window("b", 0, 60, pid=10, threads=(10,))])
    assert (finding.id, finding.severity) == ("run-doubtful", "warning")
    assert "the steps of rank 0 begin again" in finding.title
    # A container gives the same process ids again, but not the same threads.
    other = [window("a", 0, 0, pid=10, threads=(10, 77)), window("b", 0, 60, pid=10, threads=(10, 78))]
    assert parts(other) == [["a"], ["b"]]


def test_a_window_of_nothing_but_its_step_is_of_its_process(tmp_path: Path) -> None:
    """A profiler that ends as a recording begins leaves a trace of one range."""
    own = {"schema_version": 1, "run_id": "r", "rank": 0, "world_size": 1}
    for n, first in enumerate((2, 6, 2, 6)):
        events = [step(first, 1e6 * n, 900.0)]
        if first == 2:
            events.append(op("aten::mm", 1e6 * n + 10, 100.0))
        write(tmp_path / f"rank0_iter{first}_{first}.{n}.trace.json", trace(events, rankscope=own))
    run = open_run(tmp_path).load()
    assert len(run.loaded.ranks[0]) == 4
    assert run.loaded.known_runs[0].name == "r"


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
    found = runs(files)
    assert {name: len(paths) for name, paths in found.items()} == {"first": 9, "second": 9}
    assert all(path.startswith(f"{name}/") for name, paths in found.items() for path in paths)


def test_one_run_whose_ranks_recorded_at_different_times_is_doubtful() -> None:
    (finding,) = findings([window("a", 0, 0, pid=1), window("b", 1, 86_400, pid=2)])
    assert finding.id == "run-doubtful"
    assert "one rank was recorded 86398 s after another had ended" in finding.title
    assert findings([window("a", 0, 0, pid=1), window("b", 1, 300, pid=2)]) == []


def test_files_without_a_rank() -> None:
    together = [window(f"h_{pid}.1.pt.trace.json", None, 0, pid=pid, world=None) for pid in (7, 8)]
    assert len(parts(together)) == 1
    later = window("h_9.2.pt.trace.json", None, 4000, pid=9, world=None)
    assert parts([*together, later]) == [[info.path for info in together], [later.path]]
    # Another window of a process that is there: the same rank again.
    ranks, _ = assign_ranks([*together, window("h_7.2.pt.trace.json", None, 50, pid=7, world=None, steps=(4, 5))])
    assert {rank: len(files) for rank, files in ranks.items()} == {0: 2, 1: 1}


def test_copies_of_one_file_are_not_two_runs() -> None:
    copies = [window("rank0.json", 0, 0, pid=1), window("rank0.json.gz", 0, 0, pid=1)]
    assert len(parts(copies)) == 1
    assert [finding.id for finding in assign_ranks(copies)[1]] == ["rank-conflict"]
    # In another directory a copy is another run: the user chooses one.
    assert len(parts([window("a/rank0", 0, 0, pid=1), window("b/rank0", 0, 0, pid=1)])) == 2


def test_labels_are_unique() -> None:
    def labels(*infos: TraceInfo) -> list[str | None]:
        return list(group_by_run(infos).runs)

    assert labels(window("t/x/rank0.json", 0, 0, pid=1), window("t/y/rank0.json", 0, 9, pid=2)) == ["x", "y"]
    assert labels(window("t/r0.json", 0, 0, pid=1), window("t/s0.json", 0, 9, pid=2)) == ["r0", "s0"]
    alike = [window("t/rank0.json", 0, 0, pid=1), window("t/rank_0.json", 0, 9, pid=2)]
    assert labels(*alike) == ["20260921T141320", "20260921T141329"]


def test_many_ranks() -> None:
    files = [
        window(f"{run}/rank{rank}.json", rank, 100 * run, pid=run * 5000 + rank)
        for run in (1, 2)
        for rank in range(1500)
    ]
    assert [len(own) for own in group_by_run(files).runs.values()] == [1500, 1500]


def test_choosing_between_runs_without_ids(tmp_path: Path) -> None:
    for number, run in enumerate(("slow", "fast")):
        for rank in range(2):
            pid = HOST_PID + 10 * number + rank
            events = [step(1, 0, 100), {**op("aten::mm", 5, 9), "pid": pid, "tid": pid}, kernel("k", 20, 30)]
            made = trace(events, rank=rank, world_size=2, base_time_ns=NOON + number * 30 * S)
            write(tmp_path / "runs" / f"{run}-rank{rank}.json", made)
    folder = tmp_path / "runs"
    with pytest.raises(
        RunSelectionError, match=r"(?s)2 runs in here, the oldest first \(.* processes of rank 0.*\):\nslow: .*\nfast: "
    ):
        open_run(folder).load()
    run = open_run(folder, run_id="fast").load()
    assert (run.ranks, run.run_id, run.name) == ([0, 1], None, "runs: fast")
    assert all(Path(info.path).name.startswith("fast") for info in run.traces)
    assert [info.pid for info in run.traces] == [110, 111]
    assert "several-runs" in {finding.id for finding in run.findings}
    assert [Path(i.path).name for i in open_run(folder, run_id="slow").load().traces] == [
        "slow-rank0.json",
        "slow-rank1.json",
    ]
    assert open_run(folder, run_id="latest").load().name == "runs: fast"


def infos_of(*folders: Path) -> list[TraceInfo]:
    return [ingest_trace(path).info for folder in folders for path in find_traces(folder).traces]


def test_real_runs_in_one_tree(shared_traces: Path) -> None:
    found = group_by_run(infos_of(shared_traces / "torchrec")).runs
    assert {name: sorted(info.rank or 0 for info in own) for name, own in found.items()} == {
        "ddp-resnet18-2ranks": [0, 1],
        "rank2-sleeps-4ranks": [0, 1, 2, 3],
        "all-to-all-4ranks": [0, 1, 2, 3],
    }


@pytest.mark.slow
def test_real_runs_in_one_folder(shared_traces: Path) -> None:
    found = group_by_run(infos_of(shared_traces / "gloo-2ranks")).runs
    names = {path.name.partition(".")[0] for path in (shared_traces / "gloo-2ranks").glob("*.gz")}
    assert len(names) == len(found) == 8
    for name, own in found.items():
        assert {Path(info.path).name.partition(".")[0].removesuffix("_rank1") for info in own} == {name}
        assert sorted(info.rank or 0 for info in own) == [0, 1]
    # Two windows of one process, eight minutes apart, that name no run, and a rank by their file names only.
    windows = group_by_run(infos_of(shared_traces / "tensorboard-plugin" / "resnet50_num_workers_0"))
    assert ([len(own) for own in windows.runs.values()], windows.findings) == ([2], {None: []})
    assert len(group_by_run(infos_of(shared_traces / "modded-nanogpt-h100-8ranks")).runs) == 1
    together = [shared_traces / name for name in ("modded-nanogpt-h100-8ranks", "torchrec", "hta/nccl_parser_config")]
    assert sorted(len(own) for own in group_by_run(infos_of(*together)).runs.values()) == [1, 2, 4, 4, 8]


def test_hand_made_cases_of_one_process_are_divided_by_folder(shared_traces: Path) -> None:
    found = group_by_run(infos_of(*sorted((shared_traces / "tensorboard-plugin" / "unit_tests").glob("test_*")))).runs
    names = ["test_distributed_gloo_cpu", "test_distributed_gloo_gpu", "test_distributed_nccl"]
    assert {name: len(own) for name, own in found.items()} == dict.fromkeys(names, 2)


# -- ids ----------------------------------------------------------------------------------------------------------


def own(path: str, rank: int, at_s: float, *, run: str = "r", restart: int = 0, **more: Any) -> TraceInfo:
    """A file of two seconds that carries a run id."""
    return replace(window(path, rank, at_s, **more), run_id=run, restart_count=restart)


def snapshot(path: str, rank: int | None) -> TraceInfo:
    return TraceInfo(path, rank=rank, counts={"snapshot snapshot_segments": 1})


def twice(**second: Any) -> list[TraceInfo]:
    """Two ranks at noon, and again ten minutes later, with the same id."""
    chosen = {"pid": 20, **second}
    pid = chosen.pop("pid")
    first = [own(f"a{rank}", rank, 0, pid=10 + rank) for rank in (0, 1)]
    return first + [own(f"b{rank}", rank, 600, pid=pid + rank, **chosen) for rank in (0, 1)]


def test_one_id_given_to_two_starts_of_a_job() -> None:
    assert runs(twice()) == {"r:20260921T141320": ["a0", "a1"], "r:20260921T142320": ["b0", "b1"]}
    assert group_by_run(twice()).reasons == ["those with the run id r have two processes of rank 0 (10 and 20)"]
    (finding,) = findings(twice(), "r:20260921T142320")
    assert (finding.id, finding.ranks) == ("several-runs", (0, 1))
    assert "2 runs with the run id r here" in finding.title


@pytest.mark.parametrize(
    "second",
    [
        {"restart": 1},  # torchrun has counted it
        {"steps": (4, 6)},  # the scheduler started it again, and it went on
        {"pid": 10, "steps": (4, 6)},  # another window
        {"pid": 10, "threads": (10, 11)},  # containers, whose threads are not known
    ],
)
def test_a_run_that_was_started_again_is_one_run(second: dict[str, Any]) -> None:
    assert runs(twice(**second)) == {"r": ["a0", "a1", "b0", "b1"]}
    assert findings(twice(**second), "r") == []


def test_lives_of_a_run_are_reported() -> None:
    assert restarted_ranks(twice(pid=10, steps=(4, 6))) == []
    (finding,) = restarted_ranks(twice(restart=1))
    assert (finding.id, finding.severity, finding.ranks) == ("several-lives", "info", (0, 1))
    assert [each.value for each in finding.evidence] == ["restart 0, process 10", "restart 1, process 20"]


def test_labels_of_runs_without_an_id_do_not_repeat_ids() -> None:
    files = [own("t/x/rank0.json", 0, 0, run="y"), own("t/z/rank0.json", 0, 0, run="z")]
    assert runs(files) == {"y": ["t/x/rank0.json"], "z": ["t/z/rank0.json"]}
    # A folder may be called what another run's id is.
    nameless = [window("u/y/rank0.json", 0, 0, pid=1), window("u/v/rank0.json", 0, 5, pid=2)]
    found = runs([*files, *nameless])
    assert found["y"] == ["t/x/rank0.json"]
    assert found["y (no id)"] == ["u/y/rank0.json"]
    assert found["v"] == ["u/v/rank0.json"]


def test_a_file_that_lost_its_id_joins_the_run_in_its_directory() -> None:
    run = [own(f"d/rank{rank}_iter1_3.trace.json", rank, 0, pid=10 + rank, world=3) for rank in (0, 2)]
    lost = window("d/rank1_iter1_3.trace.json.gz", 1, 0.5, pid=11, world=3)
    assert list(runs([*run, lost])) == ["r"]
    (finding,) = findings([*run, lost], "r")
    assert (finding.id, finding.ranks) == ("run-adopted", (1,))
    for other in (
        replace(lost, path="e/rank1_iter1_3.trace.json"),  # elsewhere
        replace(lost, world_size=5),
        replace(lost, rank=2),  # that rank recorded at this time
        replace(lost, base_time_ns=NOON + 100 * S),  # another time
    ):
        assert runs([*run, other]) == {"r": sorted(i.path for i in run), None: [other.path]}
    # Two runs have files in that directory: it may be of either.
    more = [own(f"d/rank{rank}_iter1_3.2.trace.json", rank, 0, run="s", world=3) for rank in (0, 2)]
    assert None in runs([*run, *more, lost])


def test_a_memory_snapshot_is_not_a_run() -> None:
    traces = [own(f"{run}/rank{rank}_iter1_3.trace.json", rank, 0, run=run) for run in "ab" for rank in (0, 1)]
    found = runs([*traces, snapshot("b/rank1.memory.pickle", 1), snapshot("b/memory/000000_step_10.pickle", 0)])
    assert list(found) == ["a", "b"]
    assert found["b"][:2] == ["b/memory/000000_step_10.pickle", "b/rank0_iter1_3.trace.json"]
    assert len(found["b"]) == 4
    # In one folder: to the run with its rank, else to the last.
    alike = [own(f"d/{run}-rank{rank}.json", rank, at, run=run) for run, rank, at in (("a", 3, 0), ("b", 4, 9))]
    assert "d/rank3.memory.pickle" in runs([*alike, snapshot("d/rank3.memory.pickle", 3)])["a"]
    assert "d/rank5.memory.pickle" in runs([*alike, snapshot("d/rank5.memory.pickle", 5)])["b"]
    # Without ids: next to traces it is of their run; alone, it is the run.
    assert runs([window("rank0.json", 0, 0), snapshot("rank0.memory.pickle", 0)]) == {
        None: ["rank0.json", "rank0.memory.pickle"]
    }
    assert runs([snapshot("rank0.memory.pickle", 0)]) == {None: ["rank0.memory.pickle"]}


def test_clocks_that_differ_do_not_split_runs_with_a_folder_each() -> None:
    files = [
        window(f"t/{run}/rank{rank}.json", rank, at + 7200 * (rank // 2), pid=pid + rank, world=4)
        for run, at, pid in (("a", 0, 10), ("b", 60, 20))
        for rank in range(4)
    ]
    assert {name: len(paths) for name, paths in runs(files).items()} == {"a": 4, "b": 4}


def test_replicas_are_named_by_their_folder() -> None:
    files = [
        window(f"t/iteration_{at}/replica_{r}/rank{k}_trace.json", k, at, pid=10 * r + k, steps=(at, at))
        for at in (10, 20)
        for r in (1, 2)
        for k in (0, 1)
    ]
    assert {name: len(paths) for name, paths in runs(files).items()} == {"replica_1": 4, "replica_2": 4}


def test_choosing_between_runs_with_one_id(tmp_path: Path) -> None:
    for start in (0, 1):
        for rank in range(2):
            pid = 100 + 10 * start + rank
            events = [step(1, 0, 100), {**op("aten::mm", 5, 9), "pid": pid, "tid": pid}, kernel(f"k{start}", 20, 30)]
            metadata = {"schema_version": 1, "rank": rank, "world_size": 2, "run_id": "exp"}
            made = trace(events, rankscope=metadata, base_time_ns=NOON + start * 600 * S)
            write(tmp_path / f"rank{rank}_iter1_1{'.2' * start}.trace.json", made)
    with pytest.raises(RunSelectionError, match="those with the run id exp have two processes"):
        open_run(tmp_path, executor="serial").load()
    run = open_run(tmp_path, run_id="latest", executor="serial").load()
    assert (run.run_id, run.ranks, run.loaded.chosen) == ("exp", [0, 1], "exp:20260921T142320")
    assert all(".2." in info.path for info in run.traces)
    assert run.name.endswith(": exp:20260921T142320")
    # What the page does when a new file appears, and when another run is chosen.
    assert [info.path for info in run.reopen(find_traces(tmp_path)).load().traces] == [i.path for i in run.traces]
    first, last = run.loaded.known_runs
    assert (first.name, first.id, last.name) == ("exp:20260921T141320", "exp", "exp:20260921T142320")
    assert all(".2." not in info.path for info in run.other_run(first).load().traces)
    (tmp_path / "rank1_iter1_1.memory.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    assert len(open_run(tmp_path, run_id="latest", executor="serial").load().traces) == 2


def test_a_file_that_is_cut_before_its_base_time_has_that_of_the_others(tmp_path: Path) -> None:
    for rank, first in [(0, 0), (1, 0), (0, 10), (1, 10)]:
        events = [step(first + n, 1000 * (first + n), 900) for n in range(3)]
        events += [op("aten::mm", each["ts"] + 10, 50) for each in events]
        text = json.dumps(trace(events, rank=rank, world_size=2) | {"baseTimeNanoseconds": NOON})
        cut = text.index('"baseTimeNanoseconds"') - 40 if (rank, first) == (1, 10) else len(text)
        (tmp_path / f"rank{rank}.from{first}.json").write_text(text[:cut])
    run = open_run(tmp_path, executor="serial")
    assert run.step_time().filter(rank=1)["step"].to_list()[:5] == [0, 1, 2, 10, 11]
    assert {info.base_time_ns for info in run.traces} == {NOON}
    (cut_file,) = [finding for finding in run.findings if finding.id == "trace-oddities"]
    assert [each.name for each in cut_file.evidence][1:] == ["baseTimeNanoseconds, taken from the other files"]
    assert not [finding for finding in run.findings if finding.id == "run-doubtful"]


def test_which_base_times_are_restored() -> None:
    whole, other = window("a", 0, 0), window("b", 1, 9)
    cut = replace(window("c", 1, 0), base_time_ns=0, truncated=True)
    of_1970 = replace(cut, start_ns=NOON, end_ns=NOON + S)
    lost = replace(cut, truncated=False, lost_metadata=True)
    never = replace(cut, truncated=False)
    found = with_lost_base_times([whole, cut, of_1970, lost, never])
    assert [info.base_time_ns for info in found] == [NOON, NOON, 0, NOON, 0]
    assert with_lost_base_times([whole, other, cut]) == [whole, other, cut]
    assert with_lost_base_times([cut]) == [cut]
