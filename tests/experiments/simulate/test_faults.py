"""A fault costs what it causes, and changes nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.errors import ConfigError
from rankscope.experiments.simulate import Fault, Job, parse_mesh, simulate, simulate_timing

# Host-bound, so that the host's faults are not hidden behind the device's work.
HOST_BOUND = 0.15

EACH = [
    ("slow_device:rank=3,magnitude=0.2", 1.0),
    ("more_work:rank=3,magnitude=0.2", 1.0),
    ("data_loading:rank=3,magnitude=0.2", 1.0),
    ("slow_host:rank=3,magnitude=0.2", HOST_BOUND),
    ("slow_host:rank=3,magnitude=0.2,style=gc", HOST_BOUND),
    ("slow_host:rank=3,magnitude=0.2,style=asleep", HOST_BOUND),
    ("memory:rank=3,magnitude=0.2", 1.0),
    ("memory:rank=3,magnitude=0.2,style=copies", 1.0),
    ("slow_network:dim=dp,magnitude=0.2", 1.0),
]


@pytest.mark.parametrize(("text", "device_scale"), EACH)
def test_every_fault_costs_about_what_it_takes(text: str, device_scale: float) -> None:
    job = Job(ranks=8, steps=4, seed=11, jitter=0.2, device_scale=device_scale, faults=(Fault.parse(text),))
    truth = simulate_timing(job)
    (cost,) = truth.fault_cost_ns
    taken = truth.nominal.taken_ns(job.faults[0])
    assert taken == pytest.approx(0.2 * truth.nominal_step_ns, rel=1e-6)
    # A network's slowness partly hides behind the backward pass.
    assert (0.1 if "network" in text else 0.5) * taken < cost < 1.4 * taken
    assert sum(truth.step_ns) - sum(truth.clean_step_ns) == pytest.approx(cost * 4, abs=4)


def test_a_fault_strikes_only_its_steps_and_changes_no_other_draw() -> None:
    clean = simulate_timing(Job(ranks=4, steps=4, seed=2))
    fault = Fault.parse("data_loading:rank=1,steps=12,ms=7")
    struck = simulate_timing(Job(ranks=4, steps=4, seed=2, faults=(fault,)))
    change = np.subtract(struck.step_ns, clean.step_ns)
    assert change[0] == change[1] == 0
    assert change[2] == pytest.approx(7e6, rel=0.1)
    assert abs(change[3]) < 1e5
    # Programs and draws are the same: after the fault everything is shifted, nothing redrawn.
    a, b = clean.engine.stages[0], struck.engine.stages[0]
    np.testing.assert_array_equal(a.transfer, b.transfer)
    np.testing.assert_array_equal(np.diff(a.host[2, :20, 0]), np.diff(b.host[2, :20, 0]))


@pytest.mark.parametrize(("text", "device_scale"), EACH)
def test_a_fault_that_adds_events_redraws_nothing(text: str, device_scale: float) -> None:
    """What it adds to the program stands there in every step, also in those that it does not strike."""
    clean = simulate_timing(Job(ranks=8, steps=4, seed=3, device_scale=device_scale))
    fault = Fault.parse(text.replace("rank=3", "rank=3,steps=13"))
    if fault.steps is None:
        fault = replace(fault, steps=(13,))
    struck = simulate_timing(Job(ranks=8, steps=4, seed=3, device_scale=device_scale, faults=(fault,)))
    assert struck.step_ns[:3] == clean.step_ns[:3]
    assert struck.step_ns[3] != clean.step_ns[3]


def test_pauses_of_a_host_far_ahead_of_its_device_cost_nothing() -> None:
    fault = Fault.parse("slow_host:rank=3,magnitude=0.05,style=gc")
    truth = simulate_timing(Job(ranks=8, steps=4, seed=3, device_scale=4.0, synchronize=False, faults=(fault,)))
    assert truth.fault_cost_ns == (0,)


def test_a_slice_of_the_mesh_and_a_link() -> None:
    mesh = parse_mesh("dp=2,tp=2,pp=2")
    late = simulate_timing(Job(ranks=8, mesh=mesh, faults=(Fault.parse("data_loading:pp=1,ms=5"),)), costs=False)
    assert late.engine.stages[1].effects.loader.min() == 5_000_000
    assert late.engine.stages[0].effects.loader.max() == 0
    fault = Fault.parse("slow_network:link=0-2,ms=5")
    linked = simulate_timing(Job(ranks=8, mesh=mesh, faults=(fault,)), costs=False)
    clean = simulate_timing(Job(ranks=8, mesh=mesh), costs=False)
    stage, before = linked.engine.stages[0], clean.engine.stages[0]
    slower = {
        c.message.dim: (stage.transfer[-1, c.index] > before.transfer[-1, c.index]).tolist()
        for c in stage.program.communications
    }
    assert stage.ranks.tolist() == [0, 2, 4, 6]
    assert slower["tp"] == [True, True, False, False]
    assert slower["dp"] == [False] * 4


def test_a_link_that_carries_several_groups_takes_its_time_once() -> None:
    """The tensor-parallel group and that of all ranks share it."""
    fault = Fault.parse("slow_network:link=2-3,ms=2")
    truth = simulate_timing(Job(ranks=8, mesh=parse_mesh("dp=4,tp=2"), seed=3, faults=(fault,)))
    assert truth.fault_cost_ns[0] == pytest.approx(2_000_000, rel=0.2)


def test_two_faults_are_costed_one_by_one() -> None:
    """The smaller of two on different ranks hides behind the other: taken away alone, it changes nothing."""
    faults = (Fault.parse("data_loading:rank=1,ms=3"), Fault.parse("slow_device:rank=2,ms=1"))
    truth = simulate_timing(Job(ranks=4, steps=3, seed=5, jitter=0.2, faults=faults))
    loader, device = truth.fault_cost_ns
    assert loader > 1.5e6
    assert device < 0.1e6
    alone_loader, alone_device = truth.alone_cost_ns
    assert alone_loader > 2e6
    assert alone_device > 0.5e6
    same_rank = (faults[0], Fault.parse("slow_device:rank=1,ms=1"))
    together = simulate_timing(Job(ranks=4, steps=3, seed=5, jitter=0.2, faults=same_rank))
    assert together.fault_cost_ns[1] > 0.5e6


def test_what_a_fault_leaves_in_the_file(tmp_path: Path, read: Any) -> None:
    faults = tuple(
        Fault.parse(text)
        for text in (
            "slow_host:rank=0,style=gc,ms=4,steps=11",
            "memory:rank=1,ms=3",
            "more_work:rank=2,magnitude=0.2",
            "slow_host:rank=3,style=asleep,ms=9",
        )
    )
    truth = simulate(tmp_path, Job(ranks=4, steps=2, faults=faults), costs=False)
    traces = [read(tmp_path / truth.files[rank])["traceEvents"] for rank in range(4)]
    pauses = [e for e in traces[0] if e["name"] == "Python GC"]
    assert [e["dur"] for e in pauses] == [1_000_000] * 4
    assert not [e for e in traces[1] if e["name"] == "Python GC"]
    calls = [e["name"] for e in traces[1] if e.get("cat") == "cuda_runtime"]
    assert calls.count("cudaMalloc") == calls.count("cudaFree") == 6
    kernels = [sum(e.get("cat") == "kernel" for e in events) for events in traces]
    assert kernels[2] > kernels[0] * 1.05
    assert kernels[0] == kernels[1] == kernels[3]
    busy = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in traces[3] if e["ph"] == "X" and e["cat"] in ("cpu_op", "cuda_runtime")
    )
    latest, gaps = busy[0][1], []
    for start, end in busy:
        gaps.append(start - latest)
        latest = max(latest, end)
    assert sum(gap > 8_900_000 for gap in gaps) == 2, "asleep: nothing at all is recorded"


@pytest.mark.parametrize(
    "text", ["earthquake", "slow_device:rank", "slow_device:style=gc", "slow_network:rank=1", "more_work:color=red"]
)
def test_faults_that_are_not_valid_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Fault.parse(text)


def test_jobs_that_are_not_valid_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiply"):
        Job(ranks=8, mesh={"dp": 3})
    with pytest.raises(ConfigError, match="rank"):
        Job(ranks=4, faults=(Fault("slow_device", ranks=(9,)),))
    with pytest.raises(ConfigError, match="mesh"):
        Job(ranks=4, faults=(Fault("slow_device", where={"tp": 0}),))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpus_per_host", 0), ("layers_per_bucket", 0), ("microbatches", -1), ("warmup_steps", -1),
        ("network_scale", -1.0), ("network_scale", float("nan")),
    ],
)  # fmt: skip
def test_numbers_without_a_job_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Job(ranks=2, **{name: value})  # type: ignore[arg-type]  # a field by its name
