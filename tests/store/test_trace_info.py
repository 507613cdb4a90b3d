"""The metadata of a trace is the same after pickling, and small however many ranks its groups have."""

from __future__ import annotations

import pickle
from dataclasses import replace

from rankscope.store.trace_info import TraceInfo

ODD = {"name": "2", "description": "", "ranks": [0, 3, 4]}
NONE = {"name": "3", "description": "", "ranks": []}


def _info(ranks: int) -> TraceInfo:
    groups = [
        {"name": "0", "description": "default_pg", "ranks": list(range(ranks))},
        {"name": "1", "description": "dp", "ranks": list(range(1, ranks, 8))},
    ]
    devices = ({"id": 0, "name": "H100", "total_memory": 1 << 36},)
    return TraceInfo("a.json", rank=1, groups=(*groups, ODD, NONE), devices=devices, counts={"X kernel": 3})


def test_pickling_changes_nothing() -> None:
    info = _info(64)
    again = pickle.loads(pickle.dumps(info))
    assert again == info
    assert repr(again) == repr(info) == repr(TraceInfo.from_json(info.to_json()))


def test_a_pickle_does_not_grow_with_the_ranks_of_the_job() -> None:
    assert len(pickle.dumps(_info(4096))) < len(pickle.dumps(_info(64))) + 32


def test_ranks_share_the_groups_and_devices_that_they_list() -> None:
    one, other = (pickle.loads(pickle.dumps(replace(_info(64), rank=rank))) for rank in (1, 2))
    read = TraceInfo.from_json(_info(64).to_json())
    for number in range(2):
        assert one.groups[number] is other.groups[number] is read.groups[number]
    assert one.devices[0] is other.devices[0] is read.devices[0]
