"""The two real hangs of a 16-rank job: the verdict against the ranks in which the faults were injected.

The publisher's `fault_injection.log`: ranks 12 and 14 had a GPU error in one job, and ranks 9 and 14 held Python's lock
in the other.
"""

from __future__ import annotations

import json
import pickle
import shutil

import pytest
import torch
from typer.testing import CliRunner

from rankscope.answers.hang import Cause, read
from rankscope.capture.hang.dump import flight_recorder
from rankscope.cli import make_app
from rankscope.rundir.hang_dump import DUMP_FORMAT, HangDump

GPU_ERROR, LOCK_GIL = "flight-recorder/gpu_error_1st", "flight-recorder/lock_gil_1st"


@pytest.fixture(autouse=True)
def dumps_are_here(shared_traces):
    for case in (GPU_ERROR, LOCK_GIL):
        if not (shared_traces / case).is_dir():
            pytest.skip(f"{case} is not among the real traces here")


def test_ranks_that_hold_pythons_lock_did_not_arrive(shared_traces):
    verdict = read(shared_traces / LOCK_GIL)
    assert verdict.culprits == (9, 14)
    assert verdict.collective is not None
    assert (verdict.collective.group, verdict.collective.sequence) == ("72", 45265)
    assert (verdict.collective.operation, verdict.collective.missing) == ("all_to_all", (9, 14))
    assert verdict.collective.arrived == (8, 10, 11, 12, 13, 15)
    # The dumps have no stacks: why the ranks did not come cannot be known.
    assert verdict.cause is Cause.UNKNOWN
    assert any("Python stacks" in line for line in verdict.advice)


def test_both_ranks_with_a_failed_gpu_are_found(shared_traces):
    verdict = read(shared_traces / GPU_ERROR)
    assert verdict.culprits == (12, 14)
    assert verdict.cause is Cause.DEVICE
    assert verdict.collective is not None
    assert (verdict.collective.group, verdict.collective.sequence) == ("74", 20537)
    assert (verdict.collective.missing, verdict.collective.arrived) == ((12,), (13, 14, 15))
    # Rank 14's device is in an earlier call than the one in which rank 12 is missing: it waits for no rank.
    shown = {each.rank: each for each in verdict.ranks}
    waits = [(shown[rank].waits_in.group, shown[rank].waits_in.sequence, shown[rank].waits_for) for rank in (12, 14)]
    assert waits == [("41", 42806, ()), ("42", 42806, ())]


@pytest.mark.parametrize(("case", "culprits"), [(GPU_ERROR, (12, 14)), (LOCK_GIL, (9, 14))])
def test_files_named_after_hosts_give_the_same_verdict(shared_traces, tmp_path, case, culprits):
    for rank in range(16):
        shutil.copy(shared_traces / case / f"_dump_{rank}", tmp_path / f"nid00{12 + rank // 8}-gpu{rank % 8}.pickle")
    verdict = read(tmp_path)
    assert verdict.culprits == culprits
    assert verdict.notes == ()
    assert verdict.collective == read(shared_traces / case).collective


def test_a_lower_pipeline_stage_alone_leads_to_the_missing_dump(shared_traces, tmp_path):
    """With the dumps of ranks 0 to 7 only, what is known is that they wait for ranks 8 to 15."""
    for rank in range(8):
        shutil.copy(shared_traces / LOCK_GIL / f"_dump_{rank}", tmp_path)
    verdict = read(tmp_path)
    assert verdict.cause is Cause.UNKNOWN
    assert verdict.culprits == tuple(range(8, 16))
    assert verdict.without_dump == tuple(range(8, 16))


def test_one_broken_file_costs_no_other(shared_traces, tmp_path):
    for rank in range(16):
        shutil.copy(shared_traces / LOCK_GIL / f"_dump_{rank}", tmp_path)
    broken = tmp_path / "_dump_3"
    broken.chmod(0o644)
    broken.write_bytes(broken.read_bytes()[:700])
    verdict = read(tmp_path)
    assert verdict.culprits == (9, 14)
    assert verdict.without_dump == (3,)
    assert [str(broken) in problem for problem in verdict.problems] == [True]


def test_the_command_says_it(shared_traces):
    done = CliRunner().invoke(make_app(), ["hang", str(shared_traces / LOCK_GIL)])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].startswith("Ranks 9,14 did not arrive at all_to_all 45265 of group 72")
    done = CliRunner().invoke(make_app(), ["hang", str(shared_traces / LOCK_GIL), "--format", "json"])
    value = json.loads(done.stdout)
    assert (value["cause"], value["culprits"], value["collective"]["missing"]) == ("unknown", [9, 14], [9, 14])


@pytest.mark.parametrize(("case", "culprits"), [(GPU_ERROR, (12, 14)), (LOCK_GIL, (9, 14))])
def test_nccls_recorder_read_in_the_process_gives_the_same_verdict(
    shared_traces, tmp_path, monkeypatch, case, culprits
):
    """What torch returns to `HangWatch` on a GPU are the bytes that it writes into these files."""
    native, asked = torch._C._distributed_c10d, []
    # What other tests called with Gloo in this process is in its recorder.
    monkeypatch.setattr(native, "_dump_fr_trace", lambda *given: pickle.dumps({}), raising=False)
    for rank in range(16):
        content = (shared_traces / case / f"_dump_{rank}").read_bytes()
        monkeypatch.setattr(
            native, "_dump_nccl_trace", lambda *given, it=content: asked.append(given) or it, raising=False
        )
        recorder = flight_recorder(stacks=False)
        dump = HangDump(DUMP_FORMAT, rank, time_ns=10**18, world_size=16, reason="no step", flight_recorder=recorder)
        (tmp_path / f"rank{rank}.json").write_text(dump.to_json())
    assert asked == [(True, False, False)] * 16
    assert read(tmp_path).culprits == culprits
