"""The fault of a simulated job is the first finding and the headline: on the command line, in JSON, in the report."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.show.report.reading import read_report

import rankscope
from rankscope.cli import main
from rankscope.engine.pipeline.clock import clock_of
from rankscope.experiments.simulate import Fault, Job, simulate
from rankscope.results import with_symptoms
from rankscope.show.report.formatting import sentence
from rankscope.show.report.html_report import write_report
from rankscope.show.report.summary import summary

pytestmark = pytest.mark.slow

HOST_BOUND = 0.15
"""A faster device: a host's faults are not hidden behind its work."""
TENSOR = {"dp": 4, "tp": 2}
FAULTS: dict[str, tuple[Job, str, tuple[int, ...], set[str]]] = {
    # The job, how the first finding's title goes on, its ranks, and what must not be found beside it.
    "slow device": (
        Job(seed=90101, faults=(Fault("slow_device", (5,), magnitude=0.2),)),
        "its device is slow", (5,), {"imbalance", "mesh-imbalance"},
    ),
    "slow device in a tensor-parallel group": (
        Job(seed=90202, mesh=TENSOR, faults=(Fault("slow_device", (3,), magnitude=0.2),)),
        "its device is slow", (3,), {"imbalance", "mesh-imbalance"},
    ),
    "more work": (
        Job(seed=90303, faults=(Fault("more_work", (2,), magnitude=0.2),)),
        "it has more work", (2,), {"imbalance", "mesh-imbalance"},
    ),
    "data loading": (
        Job(seed=90404, faults=(Fault("data_loading", (1,), magnitude=0.3),)),
        "it waits for data", (1,), {"data_loading", "synchronizing_calls"},
    ),
    "data loading everywhere": (
        Job(seed=90505, faults=(Fault("data_loading", magnitude=0.3),)),
        "The job waits for data", (), {"synchronizing_calls", "straggler"},
    ),
    "slow host": (
        Job(seed=90606, device_scale=HOST_BOUND, faults=(Fault("slow_host", (4,), magnitude=0.4),)),
        "a slower core: of equal shapes", (4,), set(),
    ),
    "garbage collection": (
        Job(seed=91010, device_scale=HOST_BOUND, faults=(Fault("slow_host", (7,), magnitude=0.8, style="gc"),)),
        "Python collects garbage", (7,), set(),
    ),
    "asleep": (
        Job(seed=91111, device_scale=HOST_BOUND, faults=(Fault("slow_host", (2,), magnitude=0.4, style="asleep"),)),
        "nothing is recorded between ", (2,), set(),
    ),
    "allocations": (
        Job(seed=90707, faults=(Fault("memory", (3,), magnitude=0.25, style="retries"),)),
        "it waits for memory or copies", (3,), {"memory_retries"},
    ),
    "copies": (
        Job(seed=90808, faults=(Fault("memory", (6,), magnitude=0.25, style="copies"),)),
        "it waits for memory or copies", (6,), {"imbalance"},
    ),
    "slow network": (
        Job(seed=90909, mesh=TENSOR, faults=(Fault("slow_network", (4,), dim="tp", magnitude=0.3),)),
        "transfers data slower", (4, 5), {"straggler"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_leads(tmp_path: Path, name: str) -> None:
    job, wanted, ranks, below = FAULTS[name]
    simulate(tmp_path / "run", job, costs=False)
    run = rankscope.open(tmp_path / "run", executor="serial")
    first = run.diagnose()[0]
    assert wanted in first.title
    assert not ranks or first.ranks == ranks
    diagnosis = run.diagnosis()
    assert not {each.id for each in diagnosis.findings[1:] if each.severity != "info"} & below
    assert 0 < diagnosis.saving_ns <= (diagnosis.step_ns or 0)
    headline = sentence(diagnosis.headline)
    assert headline.startswith(first.title)
    assert diagnosis.stragglers.ranks == tuple(
        rank for each in diagnosis.findings if each.id == "straggler" for rank in each.ranks
    )
    everywhere(tmp_path / "run", run, headline)


def everywhere(folder: Path, run: rankscope.Run, headline: str) -> None:
    """What the command line, its JSON, the summary and the report say first."""
    first = run.diagnose()[0]
    out = io.StringIO()
    Console(file=out, width=300).print(summary(run))
    listed = [line for line in out.getvalue().splitlines() if line.startswith(first.severity)]
    assert listed[0].startswith(f"{first.severity:<8}{first.title}"[:60])
    if run.diagnosis().stragglers.ranks:
        cause = first.title.partition(": ")[2]
        assert f"rank {first.ranks[0]}: {cause}" in " ".join(out.getvalue().split())
    output = folder.parent / "findings.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["rankscope", "findings", str(folder), "--format", "json", "--output", str(output)])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["findings"][0] == json.loads(json.dumps(clock_of(run).finding(first).to_json()))
    assert content["diagnosis"] == json.loads(json.dumps(run.diagnosis().to_json()))
    page, _ = read_report(write_report(run))
    assert page["diagnosis"] == content["diagnosis"]
    assert [each["title"] for each in page["findings"]] == [each.title for each in run.findings]
    assert page["analyses"]["stragglers"]["headline"] == content["diagnosis"]["stragglers"]["sentence"]
    assert sentence(run.diagnosis().headline) == headline


def test_clean_runs_blame_nobody(tmp_path: Path) -> None:
    for seed, job in enumerate((Job(), Job(mesh=TENSOR), Job(data_parallel="fsdp"))):
        simulate(tmp_path / str(seed), replace(job, seed=91000 + seed), costs=False)
        diagnosis = rankscope.open(tmp_path / str(seed), executor="serial").diagnosis()
        # A window whose first step is cut has too few to tell: that is no accusation.
        assert diagnosis.stragglers.state in ("none", "too-few-steps")
        assert "straggler" not in {each.id for each in with_symptoms(diagnosis.findings)}
