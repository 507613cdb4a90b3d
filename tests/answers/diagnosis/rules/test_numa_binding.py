"""A rank runs on cores that are far from its device."""

from __future__ import annotations

import pytest

from rankscope.answers.diagnosis.rules.numa_binding import find
from rankscope.results import Finding, Inputs, Options
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.metadata import Device


def findings(*bound: tuple[int | None, object]) -> list[Finding]:
    capture = [
        RankManifest(rank=n, device=Device("cuda", numa_node=near), environment={"numa_nodes": nodes})
        for n, (near, nodes) in enumerate(bound)
    ]
    return find(Inputs(Options(), (), capture=capture))


def test_fires_where_a_device_is_on_another_node() -> None:
    (finding,) = findings((0, "0"), (0, "1"), (1, "0"))
    assert finding.title == "2 ranks run on cores that are far from their devices"
    assert finding.ranks == (1, 2)
    assert [each.value for each in finding.evidence] == [0, "1"]


@pytest.mark.parametrize(("near", "nodes"), [(1, "0-1"), (None, "1"), (0, ""), (0, None), (0, "x"), (3, "0,2-3")])
def test_does_not_fire_where_it_may_be_near(near: int | None, nodes: object) -> None:
    assert not findings((near, nodes))
