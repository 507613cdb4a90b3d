"""Several ranks run on one device."""

from __future__ import annotations

import json
from pathlib import Path

from tests import kineto
from tests.claims.check import false_claims

import rankscope
from rankscope.answers.diagnosis.rules.shared_device import find
from rankscope.results import Finding, Inputs, Options
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.metadata import METADATA_KEY, Device


def findings(*devices: Device | None, restarts: tuple[int, ...] = (), hosts: str = "aaaa") -> list[Finding]:
    capture = [
        RankManifest(rank=n, host=host, device=each, restart_count=(*restarts, *([0] * len(devices)))[n])
        for n, (each, host) in enumerate(zip(devices, hosts, strict=False))
    ]
    return find(Inputs(Options(), (), capture=capture))


def h100(uuid: str | None, pci: str | None = None, name: str = "NVIDIA H100") -> Device:
    return Device("cuda", name, 0, uuid=uuid, pci_bus_id=pci)


def test_fires_where_two_ranks_name_one_device() -> None:
    (finding,) = findings(h100("A"), h100("B"), h100("A"), h100("C"))
    assert finding.title == "Ranks 0 and 2 share one device"
    assert finding.severity == "warning"
    assert finding.ranks == (0, 2)


def test_an_address_is_of_one_host() -> None:
    assert findings(h100(None, "0000:41:00.0"), h100(None, "0000:41:00.0"), hosts="aa")
    assert not findings(h100(None, "0000:41:00.0"), h100(None, "0000:41:00.0"), hosts="ab")


def test_does_not_fire_for_slices_cpus_attempts_or_unknown_devices() -> None:
    part = h100("A", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert not findings(part, part)
    assert not findings(Device("cpu", "x", None, uuid="A"), Device("cpu", "x", None, uuid="A"))
    assert not findings(h100("A"), h100("A"), restarts=(0, 1))
    assert not findings(h100(None), h100(None), None)


def test_it_and_a_far_device_are_found_in_a_run_directory(tmp_path: Path) -> None:
    events = {rank: kineto.small_step() for rank in range(2)}
    kineto.write_ranks(tmp_path, events, **{METADATA_KEY: {"run_id": "r"}})
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        device = {"type": "cuda", "name": "H100", "uuid": "A", "numa_node": 0}
        bound = {"numa_nodes": ("0-1", "1")[rank]}
        manifest = {
            "schema_version": 1,
            "state": "finished",
            "run_id": "r",
            "rank": rank,
            "device": device,
            "environment": bound,
        }
        (tmp_path / f"ranks/rank{rank}.json").write_text(json.dumps(manifest))
    run = rankscope.open(tmp_path, executor="serial")
    found = {each.id: each for each in run.diagnosis().stated}
    assert found["shared_device"].ranks == (0, 1)
    assert found["numa_binding"].ranks == (1,)
    assert not false_claims(run)
