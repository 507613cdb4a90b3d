"""Jobs whose script does not use rankscope, each in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.soak import some_of

from rankscope.capture import auto_profiler
from rankscope.capture.notices import CaptureWarning
from rankscope.jobs.exec import profiled_environment
from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, read_trace, said, steps_in, traces

SHORT = {"RANKSCOPE_WAIT": "1", "RANKSCOPE_WARMUP": "1", "RANKSCOPE_ACTIVE": "2", "RANKSCOPE_RUN_DIR": "run"}
TRAIN = """
import torch
model = torch.nn.Linear(4, 4)
def backward():
    model(torch.ones(2, 4)).sum().backward()
"""
ONE = TRAIN + "optimizer = torch.optim.Adam(model.parameters())\n"


def run(code, cwd, *, arguments=("-c",), path=(), **variables):
    environ = clean_environ() | SHORT | variables
    environ["PYTHONPATH"] = os.pathsep.join([*map(str, path), environ["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, *arguments, code],
        cwd=cwd,
        env=profiled_environment(environ),
        capture_output=True,
        text=True,
        timeout=300,
    )


def steps_made(folder: Path) -> int:
    manifest = read_rank_manifest(folder / "run" / "ranks" / "rank0.json")
    assert manifest.last_step == manifest.steps - 1
    return manifest.steps


def test_steps_are_the_optimizers_and_ranges_do_not_cross(tmp_path):
    done = run(ONE + "for _ in range(8):\n    backward(); optimizer.step()\n", tmp_path)
    assert (done.returncode, said(done.stderr)) == (0, "")
    assert traces(tmp_path / "run") == ["rank0_iter3_4.trace.json.gz"]
    trace = read_trace(tmp_path / "run" / traces(tmp_path / "run")[0])
    assert steps_in(trace) == [3, 4]
    spans = {
        prefix: sorted((e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"] if e["name"].startswith(prefix))
        for prefix in ("ProfilerStep#", "Optimizer.step#")
    }
    for (began, ended), (first, last) in zip(spans["ProfilerStep#"], spans["Optimizer.step#"], strict=True):
        assert began <= first <= last <= ended
    assert steps_made(tmp_path) == 8


CASES = {
    "accumulation": (ONE + "for i in range(16):\n    backward()\n    if i % 2: optimizer.step()\n", 8),
    "two optimizers": (
        ONE + "other = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for i in range(8):\n    backward(); optimizer.step()\n    for _ in range(3): other.step()\n",
        8,
    ),
    "one after the other": (
        ONE + "for i in range(4): optimizer.step()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for i in range(6): optimizer.step()\n",
        10,
    ),
    "a step within a step": (
        ONE + "class Sharded(torch.optim.Optimizer):\n"
        "    def __init__(self, inner):\n        self.inner = inner\n        super().__init__(inner.param_groups, {})\n"
        "    def step(self, closure=None):\n        return self.inner.step(closure)\n"
        "optimizer = Sharded(optimizer)\nfor i in range(8):\n    backward(); optimizer.step()\n",
        8,
    ),
    "LBFGS": (
        TRAIN + "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)\n"
        "def closure():\n    optimizer.zero_grad(); loss = model(torch.ones(2, 4)).square().sum(); loss.backward()\n"
        "    return loss\nfor i in range(8): optimizer.step(closure)\n",
        8,
    ),
    "GradScaler skips": (
        ONE + "scaler = torch.amp.GradScaler('cpu')\n"
        "for i in range(10):\n    optimizer.zero_grad(); backward()\n"
        "    if i in (2, 5): model.weight.grad[0, 0] = float('inf')\n"
        "    scaler.scale(torch.ones(())); scaler.step(optimizer); scaler.update()\n",
        8,
    ),
    "a loader that forks": (
        ONE + "loader = torch.utils.data.DataLoader(torch.arange(16.0), batch_size=2, num_workers=1)\n"
        "for batch in loader:\n    backward(); optimizer.step()\n",
        8,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_counts_as_a_step(tmp_path, case):
    code, steps = CASES[case]
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps_made(tmp_path) == steps, done.stderr
    assert len(traces(tmp_path / "run")) == 1


def test_a_profiler_in_the_script_is_used_instead(tmp_path):
    code = (
        "import rankscope\n" + ONE + "for _ in range(3): optimizer.step()\n"
        "with rankscope.Profiler('mine', wait=0, warmup=1, active=1) as prof:\n"
        "    for _ in range(8):\n        optimizer.step(); prof.step()\n"
    )
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "mine") == ["rank0_iter1_1.trace.json.gz"]
    assert traces(tmp_path / "run") == []


@pytest.mark.slow
def test_no_exception_leaves_an_optimizers_step(monkeypatch):
    counter = auto_profiler._StepCounter()
    monkeypatch.setattr(auto_profiler, "_counter", counter)
    monkeypatch.setattr(counter.primary, "counts", lambda _optimizer: 1 / 0)
    with pytest.warns(CaptureWarning, match="no longer profiled: ZeroDivisionError"):
        auto_profiler._after_step(object())
    auto_profiler._after_step(object())
    assert counter.steps == 2


@pytest.mark.slow
def test_a_job_without_a_step_ends_with_a_message(tmp_path):
    done = run("import torch, sys; sys.exit(6)", tmp_path)
    assert done.returncode == 6
    assert "no optimizer step" in done.stderr
    crashed = run("import torch; raise ValueError('theirs')", tmp_path)
    assert crashed.stderr.splitlines()[-1] == "ValueError: theirs"
    other_rank = run("import torch", tmp_path, RANK="1", WORLD_SIZE="2")
    assert other_rank.stderr == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_rank_without_a_world_size_is_warned_about(tmp_path):
    done = run(ONE + "for _ in range(8): optimizer.step()\n", tmp_path, RANK="3")
    assert done.returncode == 0, done.stderr
    assert "RANK=3 is set without WORLD_SIZE" in done.stderr
    assert traces(tmp_path / "run") == ["rank0_iter3_4.trace.json.gz"]


@pytest.mark.slow
def test_the_first_step_has_its_time(tmp_path):
    code = ONE + "import time\ntime.sleep(0.5)\nfor _ in range(8):\n    backward(); optimizer.step()\n"
    assert run(code, tmp_path).returncode == 0
    (first, *_) = read_rank_manifest(tmp_path / "run" / "ranks" / "rank0.json").step_times
    # From the making of the optimizer on.
    assert (first.first_step, first.state) == (0, "wait")
    assert 0.5e9 <= first.ns[0] < 600e9


def test_a_process_without_torch_is_left_alone(tmp_path):
    code = (
        "import sys\nbad = [m for m in sys.modules if m.partition('.')[0] in ('torch', 'rankscope')]\n"
        "assert not bad, bad\nassert not [p for p in sys.path if p.endswith('hook')]"
    )
    done = run(code, tmp_path)
    assert (done.returncode, said(done.stderr)) == (0, "")


def test_a_sitecustomize_that_was_there_runs(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    code = "import sys, sitecustomize\nassert sys.theirs == sitecustomize.__file__, sys.theirs\nprint(sys.theirs)"
    done = run(code, tmp_path, path=[there])
    assert done.stdout.strip() == str(there / "sitecustomize.py"), done.stderr
    (there / "sitecustomize.py").write_text("1 / 0\n")
    with_hook = run("print('on')", tmp_path, path=[there])
    assert with_hook.stdout == "on\n"
    assert "ZeroDivisionError" in with_hook.stderr


# tests/rundir/test_launcher.py has them all: three are enough to see that the hook asks.
LAUNCHERS = [
    {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"},
    {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0"},
    {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PMI_SIZE": "4", "PALS_LOCAL_SIZE": "4", "PBS_JOBID": "7.x"},
    {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
    {"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "3"},
    {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "1"},
    {"MVP_COMM_WORLD_RANK": "1", "MVP_COMM_WORLD_SIZE": "4", "MVP_COMM_WORLD_LOCAL_RANK": "1"},
    {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"},
    {"RANK": "1", "WORLD_SIZE": "4"},
    {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_ID": "f"},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", some_of(LAUNCHERS, usual=LAUNCHERS[:2] + LAUNCHERS[4:5]), ids=lambda variables: "-".join(variables)[:40]
)
def test_under_every_launcher(tmp_path, launcher):
    done = run(ONE + "for _ in range(8): optimizer.step()\n", tmp_path, **launcher)
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "run") == ["rank1_iter3_4.trace.json.gz"]


@pytest.mark.slow
def test_rankscope_run_profiles_an_unmodified_script(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n" + ONE
        + "model = torch.nn.parallel.DistributedDataParallel(model)\n"
        "for _ in range(8):\n    backward(); optimizer.step()\n"
        # Else a thread of gloo may meet the interpreter's end, and abort (docs/capture.md).
        "import gc\ndel model\ngc.collect()\ndist.destroy_process_group()\n"
    )  # fmt: skip
    options = [
        "--ranks",
        "1",
        "--wait",
        "1",
        "--nproc-per-node",
        "2",
        "--warmup=1",
        "--run-dir",
        "out",
        "--active",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "from rankscope.cli import main; main()", "run", *options, "train.py"],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "out") == ["rank1_iter3_4.trace.json.gz"]
    # torchrun itself loads torch and makes no step: it must not print the message.
    assert "no optimizer step" not in done.stderr
