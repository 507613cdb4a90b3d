"""FSDP2, tensor parallelism and a pipeline with NCCL: what their traces say is what was done to a rank."""

from __future__ import annotations

import pytest

import rankscope

from .test_watch import job

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
KINDS = {
    "fsdp": {"all_gather", "reduce_scatter"},
    "tp": {"all_reduce"},
    "pipeline": {"send", "recv", "send_recv"},
}


def recorded(case, late_rank, folder):
    job("parallel_job.py", case, str(late_rank), str(folder))
    return rankscope.open(folder, executor="serial")


@pytest.mark.parametrize("case", KINDS)
def test_every_collective_has_its_partners(tmp_path, cuda, case):
    run = recorded(case, -1, tmp_path)
    found = run.collectives()
    assert set(found["collective"]) >= KINDS[case]
    assert found["matched_ranks"].unique().to_list() == [2]
    assert found["bytes"].null_count() == 0
    ids = {finding.id for finding in run.diagnose()}
    assert not ids & {"straggler", "collectives-without-kernel", "unmatched-collectives"}, ids


@pytest.mark.parametrize(("case", "finding"), [("fsdp", "straggler"), ("tp", "straggler"), ("pipeline", "silent_host")])
def test_the_late_rank_is_named(tmp_path, cuda, case, finding):
    """A stage of a pipeline has no rank to be compared with; its device waits for its host all the same."""
    first = recorded(case, 1, tmp_path).diagnose()[0]
    assert (first.id, first.ranks) == (finding, (1,))
    assert 35e6 < first.saving_ns < 50e6  # it sleeps for 40 ms
