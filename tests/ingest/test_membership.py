"""Which run a trace is of: ids that were used twice, files that lost theirs, and files that can have none."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.test_run_grouping import NOON, S, window
from tests.kineto import kernel, op, step, trace, write

from rankscope.errors import RunSelectionError
from rankscope.ingest.membership import lives, membership
from rankscope.pipeline import open_run
from rankscope.store.trace_info import TraceInfo


def own(path: str, rank: int, at_s: float, *, run: str = "r", restart: int = 0, **more: Any) -> TraceInfo:
    """A file of two seconds that carries a run id."""
    return replace(window(path, rank, at_s, **more), run_id=run, restart_count=restart)


def snapshot(path: str, rank: int | None) -> TraceInfo:
    return TraceInfo(path, rank=rank, counts={"snapshot snapshot_segments": 1})


def parts(infos: list[TraceInfo]) -> dict[str | None, list[str]]:
    """The paths of each run by its name, however the files came."""
    found = membership(infos).runs
    for seed in range(5):
        again = membership(random.Random(seed).sample(infos, len(infos))).runs
        assert {name: {i.path for i in own} for name, own in again.items()} == {
            name: {i.path for i in own} for name, own in found.items()
        }
    return {name: sorted(info.path for info in infos) for name, infos in found.items()}


def twice(**second: Any) -> list[TraceInfo]:
    """Two ranks at noon, and again ten minutes later, with the same id."""
    chosen = {"pid": 20, **second}
    pid = chosen.pop("pid")
    first = [own(f"a{rank}", rank, 0, pid=10 + rank) for rank in (0, 1)]
    return first + [own(f"b{rank}", rank, 600, pid=pid + rank, **chosen) for rank in (0, 1)]


def test_one_id_given_to_two_starts_of_a_job() -> None:
    found = membership(twice())
    assert {name: len(infos) for name, infos in found.runs.items()} == {"r:20260921T141320": 2, "r:20260921T142320": 2}
    assert parts(twice())["r:20260921T142320"] == ["b0", "b1"]
    assert "those with the id r are told apart by process of rank 0 (20 and 10)" in found.apart
    (finding,) = found.findings("r:20260921T142320")
    assert (finding.id, finding.ranks) == ("runs-told-apart", (0, 1))
    assert "2 runs with the id r lie here" in finding.title


@pytest.mark.parametrize(
    "second",
    [
        {"restart": 1},  # torchrun has counted it
        {"steps": (4, 6)},  # the scheduler started it again, and it went on
        {"pid": 10, "steps": (4, 6)},  # another window
        {"pid": 10, "threads": (10, 11)},  # containers, whose threads nobody knows
    ],
)
def test_a_run_that_was_started_again_is_one_run(second: dict[str, Any]) -> None:
    assert parts(twice(**second)) == {"r": ["a0", "a1", "b0", "b1"]}
    assert membership(twice(**second)).findings("r") == []


def test_lives_of_a_run_are_told() -> None:
    assert lives(twice(pid=10, steps=(4, 6))) == []
    (finding,) = lives(twice(restart=1))
    assert (finding.id, finding.severity, finding.ranks) == ("several-lives", "info", (0, 1))
    assert [each.value for each in finding.evidence] == ["restart 0, process 10", "restart 1, process 20"]


def test_ids_stay_what_they_are_and_two_labels_are_never_one() -> None:
    files = [own("t/x/rank0.json", 0, 0, run="y"), own("t/z/rank0.json", 0, 0, run="z")]
    assert parts(files) == {"y": ["t/x/rank0.json"], "z": ["t/z/rank0.json"]}
    # A folder may be called what another run's id is.
    nameless = [window("u/y/rank0.json", 0, 0, pid=1), window("u/v/rank0.json", 0, 5, pid=2)]
    found = parts([*files, *nameless])
    assert found["y"] == ["t/x/rank0.json"]
    assert found["y (no id)"] == ["u/y/rank0.json"]
    assert found["v"] == ["u/v/rank0.json"]


def test_a_file_that_lost_its_id_goes_to_the_run_that_lacks_its_rank() -> None:
    run = [own(f"d/rank{rank}_iter1_3.trace.json", rank, 0, pid=10 + rank, world=3) for rank in (0, 2)]
    lost = window("d/rank1_iter1_3.trace.json.gz", 1, 0.5, pid=11, world=3)
    found = membership([*run, lost])
    assert list(found.runs) == ["r"]
    (finding,) = found.findings("r")
    assert (finding.id, finding.ranks) == ("run-adopted", (1,))
    for other in (
        replace(lost, path="e/rank1_iter1_3.trace.json"),  # elsewhere
        replace(lost, path="d/rank1_iter7_9.trace.json"),  # other steps
        replace(lost, world_size=5),
        replace(lost, rank=2),  # that rank recorded at this time
        replace(lost, base_time_ns=NOON + 100 * S),  # another time
    ):
        assert parts([*run, other]) == {"r": sorted(i.path for i in run), None: [other.path]}
    # Two runs' files lie there, alike: nobody knows whose it is.
    beside = [own(f"d/rank{rank}_iter1_3.2.trace.json", rank, 0, run="s", world=3) for rank in (0, 2)]
    assert None in parts([*run, *(replace(i, path=i.path.replace(".2.", ".")) for i in beside), lost])


def test_a_memory_snapshot_is_no_run_of_its_own() -> None:
    runs = [own(f"{run}/rank{rank}_iter1_3.trace.json", rank, 0, run=run) for run in "ab" for rank in (0, 1)]
    found = parts([*runs, snapshot("b/rank1.memory.pickle", 1), snapshot("b/memory/000000_step_10.pickle", 0)])
    assert list(found) == ["a", "b"]
    assert found["b"][:2] == ["b/memory/000000_step_10.pickle", "b/rank0_iter1_3.trace.json"]
    assert len(found["b"]) == 4
    # In one folder: to the run with its rank, else to the last.
    alike = [own(f"d/{run}-rank{rank}.json", rank, at, run=run) for run, rank, at in (("a", 3, 0), ("b", 4, 9))]
    assert "d/rank3.memory.pickle" in parts([*alike, snapshot("d/rank3.memory.pickle", 3)])["a"]
    assert "d/rank5.memory.pickle" in parts([*alike, snapshot("d/rank5.memory.pickle", 5)])["b"]
    # Without ids, as ever: beside traces it is of their run, alone it is what there is.
    assert parts([window("rank0.json", 0, 0), snapshot("rank0.memory.pickle", 0)]) == {
        None: ["rank0.json", "rank0.memory.pickle"]
    }
    assert parts([snapshot("rank0.memory.pickle", 0)]) == {None: ["rank0.memory.pickle"]}


def test_clocks_that_differ_do_not_split_runs_with_a_folder_each() -> None:
    files = [
        window(f"t/{run}/rank{rank}.json", rank, at + 7200 * (rank // 2), pid=pid + rank, world=4)
        for run, at, pid in (("a", 0, 10), ("b", 60, 20))
        for rank in range(4)
    ]
    assert {name: len(paths) for name, paths in parts(files).items()} == {"a": 4, "b": 4}


def test_replicas_are_named_by_their_folder() -> None:
    files = [
        window(f"t/iteration_{at}/replica_{r}/rank{k}_trace.json", k, at, pid=10 * r + k, steps=(at, at))
        for at in (10, 20)
        for r in (1, 2)
        for k in (0, 1)
    ]
    assert {name: len(paths) for name, paths in parts(files).items()} == {"replica_1": 4, "replica_2": 4}


def test_from_files_with_one_id_to_a_chosen_run(tmp_path: Path) -> None:
    for start in (0, 1):
        for rank in range(2):
            pid = 100 + 10 * start + rank
            events = [step(1, 0, 100), {**op("aten::mm", 5, 9), "pid": pid, "tid": pid}, kernel(f"k{start}", 20, 30)]
            said = {"schema_version": 1, "rank": rank, "world_size": 2, "run_id": "exp"}
            made = trace(events, rankscope=said, base_time_ns=NOON + start * 600 * S)
            write(tmp_path / f"rank{rank}_iter1_1{'.2' * start}.trace.json", made)
    with pytest.raises(RunSelectionError, match="with the id exp are told apart"):
        open_run(tmp_path, executor="serial").load()
    run = open_run(tmp_path, run_id="latest", executor="serial").load()
    assert (run.run_id, run.ranks, run.loaded.chosen) == ("exp", [0, 1], "exp:20260921T142320")
    assert all(".2." in info.path for info in run.traces)
    assert run.name.endswith(": exp:20260921T142320")
    # What the page does when a file has come, and when another run is chosen.
    from rankscope.ingest.discover import find_traces

    assert [info.path for info in run.again(find_traces(tmp_path)).load().traces] == [i.path for i in run.traces]
    first, last = run.loaded.known_runs
    assert (first.name, first.id, last.name) == ("exp:20260921T141320", "exp", "exp:20260921T142320")
    assert all(".2." not in info.path for info in run.other(first).load().traces)
    (tmp_path / "rank1_iter1_1.memory.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    assert len(open_run(tmp_path, run_id="latest", executor="serial").load().traces) == 2
