"""A job with NCCL and Gloo: each has a recorder of its own, with numbers of its own, also in one group."""

from __future__ import annotations

import pickle

import pytest
import torch
from tests.answers.hang.dumps import recorders

from rankscope.answers.hang import Cause, read
from rankscope.capture.hang.dump import flight_recorder
from rankscope.rundir.hang_dump import DUMP_FORMAT, HANG_FOLDER, GroupState, HangDump

GROUPS = {"2": (0, 1, 2, 3)}


def gloo(recorder):
    """Of Gloo: its dump has no names of groups."""
    dump = recorder.dump()
    for entry in dump["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
    return {**dump, "pg_config": {"": {"name": "", "desc": "", "ranks": str(recorder.groups["0"])}}}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the dump of a rank as the capture does, from what torch has of either backend."""

    def dump_of(rank, of_nccl, of_gloo):
        native = torch._C._distributed_c10d
        for name, value in (("_dump_nccl_trace", of_nccl), ("_dump_fr_trace", of_gloo)):
            monkeypatch.setattr(native, name, lambda *_, it=value: pickle.dumps(it), raising=False)
        recorded = flight_recorder(stacks=False)
        groups = tuple(
            GroupState(name, "default_pg" if name == "0" else "", tuple(ranks), 77)
            for name, ranks in {"0": range(4), **GROUPS}.items()
            if rank in ranks
        )
        path = tmp_path / HANG_FOLDER / f"rank{rank}.json"
        path.parent.mkdir(exist_ok=True)
        dump = HangDump(
            DUMP_FORMAT, rank, time_ns=10**18, world_size=4, reason="x", groups=groups, flight_recorder=recorded
        )
        path.write_text(dump.to_json())

    return dump_of


def test_both_backends_of_one_group(write, tmp_path):
    """All ranks are at Gloo's 40th collective; rank 2 has not called NCCL's fifth."""
    both = zip(recorders(4), recorders(4), strict=True)
    for rank, (of_nccl, of_gloo) in enumerate(both):
        for _ in range(40):
            of_gloo.call("all_reduce")
        for number in range(5 - (rank == 2)):
            of_nccl.call("all_gather", done=number < 4)
        write(rank, of_nccl.dump(), gloo(of_gloo))
    verdict = read(tmp_path)
    assert (verdict.cause, verdict.culprits) == (Cause.UNKNOWN, (2,))
    place = verdict.collective
    assert (place.group, place.operation, place.sequence) == ("0 (nccl)", "all_gather", 5)
    assert place.missing == (2,)


def test_the_rank_at_fault_has_called_nothing_of_one_backend(write, tmp_path):
    for rank, (of_nccl, of_gloo) in enumerate(zip(recorders(4), recorders(4), strict=True)):
        for _ in range(9):
            of_gloo.call("barrier")
        if rank != 3:
            of_nccl.call("all_reduce", done=False)
        write(rank, of_nccl.dump(), gloo(of_gloo))
    verdict = read(tmp_path)
    assert (verdict.culprits, verdict.collective.group) == ((3,), "0 (nccl)")


def test_the_status_of_a_backend_counts_for_its_groups(write, tmp_path):
    """Rank 1 has not called NCCL's seventh collective of group 2; rank 2 has, but its buffer has dropped its calls."""
    for rank, (of_nccl, of_gloo) in enumerate(zip(recorders(4, GROUPS), recorders(4, GROUPS), strict=True)):
        of_nccl.call("all_reduce")
        for number in range(7 - (rank == 1)):
            of_nccl.call("all_gather", "2", done=number < 6)
        for _ in range(9):
            of_gloo.call("barrier")
        nccl = of_nccl.dump()
        if rank == 2:
            nccl["entries"] = nccl["entries"][:1]
        write(rank, nccl, gloo(of_gloo))
    verdict = read(tmp_path)
    assert (verdict.collective.group, verdict.collective.sequence) == ("2", 7)
    assert verdict.culprits == (1,)
