"""Scripts that profile themselves, under `rankscope run` and `exec`: their profilers are adopted, or taken over."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys

import pytest

from rankscope.cli.run import recorded_by_script
from rankscope.jobs.exec import profiled_environment
from rankscope.jobs.gather.merge import rank_manifests
from rankscope.rundir.manifest import RankManifest, WrittenTrace, read_rank_manifest, read_run_manifest, to_json
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata

from .conftest import clean_environ, read_trace, steps_in, traces
from .test_integrations import huggingface, lightning
from .test_never_harms import hidden
from .two_ranks import start

TIMEOUT_S = 300

TRAIN = """
import gc, os, sys, torch, torch.distributed as dist
from torch.profiler import profile, schedule, tensorboard_trace_handler
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps, after=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.full((2, 8), 1.0 + rank)).square().sum()
        loss.backward()
        optimizer.step()
        sys.stdout.write(f"loss {rank} {loss.item().hex()}\\n")
        after()
"""
DROP = "del model, optimizer, train; gc.collect(); dist.destroy_process_group()\n"
STYLES = (
    TRAIN
    + """
def handler(p):
    assert p.key_averages().table() or TAKEN_OVER
    p.export_chrome_trace(f"theirs_{rank}_{p.step_num}.json")
    sys.stdout.write(f"handler {rank} {p.step_num}\\n")
TAKEN_OVER = "RANKSCOPE_TAKE_OVER" in os.environ
with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=handler) as p:
    train(9, p.step)
with profile(record_shapes=True) as p:
    train(3)
p.export_chrome_trace(f"plain_{rank}.json.gz")
p.events(), p.key_averages().table(sort_by="self_cpu_time_total")
to_tensorboard = tensorboard_trace_handler("tensorboard", f"worker{rank}")
with profile(schedule=schedule(wait=0, warmup=1, active=1, repeat=1), on_trace_ready=to_tensorboard) as p:
    train(6, p.step)
"""
    + DROP
)
LIBRARIES = """
import logging, os, sys, torch, warnings
warnings.simplefilter("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning.pytorch as pl
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs
from lightning.pytorch.profilers import PyTorchProfiler
rank = os.environ["RANK"]
torch.manual_seed(0)
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        sys.stdout.write(f"loss {rank} {loss.item().hex()}\\n")
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
trainer = pl.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, max_steps=8, profiler=PyTorchProfiler(dirpath="lightning", filename="prof"),
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(64, 8), batch_size=2))
def handler(p):
    p.export_chrome_trace(f"theirs_{rank}_{p.step_num}.json")
    sys.stdout.write(f"handler {rank} {p.step_num}\\n")
options = dict(wait=0, warmup=1, active=2, repeat=1)
wanted = ProfileKwargs(activities=["cpu"], schedule_option=options, on_trace_ready=handler)
accelerator = Accelerator(cpu=True, kwargs_handlers=[wanted])
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
with accelerator.profile() as p:
    for _ in range(5):
        loss = model(torch.ones(2, 8)).square().mean()
        accelerator.backward(loss); optimizer.step(); optimizer.zero_grad(); p.step()
        sys.stdout.write(f"loss {rank} {loss.item().hex()}\\n")
del model, optimizer
accelerator.end_training()
"""


def launch(code, cwd, *options):
    """What each rank of `rankscope run` printed, in its order."""
    cwd.mkdir()
    (cwd / "job.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "run", "--run-dir", "run", "--nproc-per-node", "2", *options, "job.py"],
        cwd=cwd,
        env={**clean_environ(), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [printed_by(rank, done.stdout) for rank in range(2)]


def without_rankscope(code, cwd):
    """The same of a job without it."""
    jobs = start(code, cwd, profiled=False, HF_HUB_OFFLINE="1", TORCHELASTIC_RUN_ID="plain", LOCAL_WORLD_SIZE="2")
    outputs = [job.communicate(timeout=TIMEOUT_S) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    return [printed_by(rank, output) for rank, (output, _) in enumerate(outputs)]


def printed_by(rank, output):
    return re.findall(rf"(?:loss|handler) {rank} \S+", output)


def losses(ranks):
    return [[line for line in rank if line.startswith("loss")] for rank in ranks]


def of_theirs(folder):
    """By file: how many events it has."""
    found = {}
    for path in sorted(folder.rglob("*.json*")):
        if "run" not in path.relative_to(folder).parts[0]:
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            found[re.sub(r"\d{15,}", "N", path.relative_to(folder).as_posix())] = len(json.loads(text)["traceEvents"])
    return found


def check_run(folder, names):
    """Traces of both ranks, with metadata of ours and the steps of their names, which one command opens."""
    assert traces(folder / "run") == sorted(f"rank{rank}_{name}.trace.json.gz" for rank in range(2) for name in names)
    for rank in range(2):
        manifest = read_rank_manifest(folder / "run" / "ranks" / f"rank{rank}.json")
        assert (manifest.state, manifest.skipped, manifest.failed) == ("finished", (), ())
        assert all(
            each.adopted and each.recorded_by.startswith("torch.profiler.profile, ") for each in manifest.written
        )
        for each in manifest.written:
            trace = read_trace(folder / "run" / each.file)
            metadata = TraceMetadata.from_json(trace[METADATA_KEY])
            assert (metadata.rank, metadata.world_size, metadata.process_groups[0].ranks) == (rank, 2, (0, 1))
            assert (metadata.first_step, metadata.last_step) == (each.first_step, each.last_step)
            assert set(range(each.first_step, each.last_step + 1)) <= set(steps_in(trace))
            assert metadata.clock_anchors
    shown = subprocess.run(
        [sys.executable, "-m", "rankscope", "summary", "run"],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert shown.returncode == 0, shown.stderr
    assert "ranks 0–1 of 2 · steps" in shown.stdout


@pytest.mark.slow
def test_profilers_of_a_script_are_adopted_or_taken_over(tmp_path):
    plain = without_rankscope(STYLES, tmp_path / "plain")
    assert launch(STYLES, tmp_path / "adopted") == plain
    theirs = of_theirs(tmp_path / "adopted")
    assert theirs.keys() == of_theirs(tmp_path / "plain").keys()
    assert len(theirs) == 8
    assert min(theirs.values()) > 20
    check_run(tmp_path / "adopted", ["iter2_3", "iter6_7", "iter9_11", "iter1_1"])

    taken = launch(STYLES, tmp_path / "taken", "--take-over", "--ranks", "1", "--wait", "2", "--warmup", "1")
    assert taken == losses(plain)  # and no handler ran
    # What the script exports by itself is there, and holds no event.
    assert of_theirs(tmp_path / "taken") == {"plain_0.json.gz": 0, "plain_1.json.gz": 0}
    assert traces(tmp_path / "taken" / "run") == ["rank1_iter4_6.trace.json.gz"]
    assert steps_in(read_trace(tmp_path / "taken" / "run" / "rank1_iter4_6.trace.json.gz")) == [4, 5, 6]


@pytest.mark.slow
@huggingface
@lightning
def test_profilers_of_libraries_are_adopted(tmp_path):
    plain = without_rankscope(LIBRARIES, tmp_path / "plain")
    assert launch(LIBRARIES, tmp_path / "adopted") == plain
    assert of_theirs(tmp_path / "adopted").keys() == of_theirs(tmp_path / "plain").keys()
    check_run(tmp_path / "adopted", ["iter2_4", "iter1_2"])


ON_ONE_RANK = (
    TRAIN
    + """
if rank == 0:
    # The other rank may have voted to record rankscope's windows before.
    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as p: train(int(sys.argv[1]), p.step)
else: train(int(sys.argv[1]))
"""
    + DROP
)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [6, 25], ids=["shorter than the schedule", "longer"])
def test_a_profiler_on_one_rank_leaves_no_windows_of_the_others_alone(tmp_path, steps):
    (tmp_path / "job.py").write_text(ON_ONE_RANK)
    command = [sys.executable, "-m", "rankscope", "run", "--run-dir", "run", "--nproc-per-node", "2", "job.py"]
    environ = {**clean_environ(), "RANKSCOPE_REPEAT": "3", "RANKSCOPE_WAIT": "3", "RANKSCOPE_WARMUP": "1"}
    done = subprocess.run(
        [*command, str(steps)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "run") == ["rank0_iter2_3.trace.json.gz"]
    one, other = (read_rank_manifest(tmp_path / "run" / "ranks" / f"rank{rank}.json") for rank in range(2))
    assert (one.state, one.skipped, other.state, other.written) == ("finished", (), "finished", ())
    name = re.search(r"torch\.profiler\.profile, job\.py:\d+", one.written[0].recorded_by)[0]
    assert {each.reason for each in other.skipped} == {f"the script's own profiler records on rank 0 instead: {name}"}
    assert name in other.warnings[0]
    assert done.stderr.splitlines()[-1] == (
        f"The script's own profiler ({name}) recorded rank 0 alone; there is no trace of rank 1. "
        "--take-over records all ranks instead."
    )
    # Nothing names a schedule that was not used.
    assert read_run_manifest(tmp_path / "run" / "run.json").schedule == {}
    assert one.requested_steps is None
    assert [one.steps, other.steps] == [steps] * 2


def test_a_rank_that_was_killed_has_no_trace_for_that_reason(tmp_path):
    by_script = WrittenTrace(
        "rank0_iter2_3.trace.json.gz", 2, 3, adopted=True, recorded_by="torch.profiler.profile, a:1"
    )
    for rank, written, state in ((0, (by_script,), "finished"), (1, (), "running"), (2, (), "finished")):
        path = tmp_path / "ranks" / f"rank{rank}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(to_json(RankManifest(rank=rank, world_size=3, written=written, state=state)))
    assert recorded_by_script(rank_manifests(tmp_path)) == "No trace of rank 1: it ended before one was written."


SLOW_WRITER = """
from rankscope.capture import trace_queue
import time
original = trace_queue.finish_trace
def slow(*given, **named):
    time.sleep(0.3)
    return original(*given, **named)
if os.environ["RANK"] == "1": trace_queue.finish_trace = slow
"""


@pytest.mark.slow
def test_a_busy_writer_costs_no_adopted_window(tmp_path):
    """There is no vote on them: each waits on the disk until it is written."""
    code = TRAIN + SLOW_WRITER + "with profile(schedule=schedule(wait=0, warmup=1, active=1)) as p: train(16, p.step)\n"
    launch(code + DROP, tmp_path / "job")
    check_run(tmp_path / "job", [f"iter{n}_{n}" for n in range(1, 16, 2)])


# --- one rank -----------------------------------------------------------------------------------------------

ONE = """
import os, signal, sys, torch
from torch.profiler import profile, schedule
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps, after=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step(); after()
"""
CASES = {
    # What the script does, its exit status, the traces.
    "its FLOPs are counted before the loop": (
        "with profile(with_flops=True) as p: model(torch.ones(2, 8))\n"
        "assert sum(each.flops for each in p.key_averages())\n"
        "from rankscope.capture import auto_profiler; auto_profiler._counter.profiler._writer.drain(60)\ntrain(8)",
        0,
        ["iter0_0", "iter3_4"],
    ),
    "torch.autograd.profiler": (
        "with torch.autograd.profiler.profile() as p: train(3)\np.export_chrome_trace('theirs.json'); train(8)",
        0,
        ["iter0_2"],
    ),
    "never stopped": ("p = profile(); p.start(); train(4); sys.exit(3)", 3, ["iter0_3"]),
    "a signal": ("p = profile(); p.start(); train(4); os.kill(os.getpid(), signal.SIGTERM)", -15, ["iter0_3"]),
    "no optimizer": (
        "with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as p:\n"
        "    for _ in range(5): model(torch.ones(2, 8)); p.step()",
        0,
        ["iter2_3"],
    ),
    "a profiler inside another": (  # the inner one ends the recording of both, in torch itself
        "train(2)\nwith profile() as p:\n    train(1)\n    with torch.autograd.profiler.profile() as q: train(1)\n"
        "assert q.kineto_results.events()\nsys.exit(4)",
        4,
        ["iter3_3"],
    ),
    "exports as torch does": (
        "with profile(with_stack=True, record_shapes=True, profile_memory=True) as p: train(1)\n"
        "p.export_chrome_trace('theirs.json')\n"
        # The bodies of modules that are imported while it records are events with names that torch has freed.
        "assert not [e.name for e in p.events() if '_cupti_monitor.py(0)' in e.name]\n"
        "try: p.export_chrome_trace('again.json')\n"
        "except RuntimeError as error: assert 'already saved' in str(error)\n"
        "else: raise AssertionError\n"
        "p.export_stacks('stacks.txt'); p.export_memory_timeline('memory.json', device='cpu')\n"
        "assert os.path.getsize('memory.json') > 2\n"
        "with profile() as p: train(1)\np.export_chrome_trace('missing/theirs.json')",
        0,
        ["iter0_0", "iter1_1"],
    ),
}


def run_one(code, cwd, **variables):
    environ = clean_environ() | {"RANKSCOPE_RUN_DIR": "run", "RANKSCOPE_WAIT": "1", "RANKSCOPE_WARMUP": "1"}
    environ |= {"RANKSCOPE_ACTIVE": "2", **variables}
    (cwd / "job.py").write_text(ONE + code)
    return subprocess.run(
        [sys.executable, "job.py"],
        cwd=cwd,
        env=profiled_environment(environ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")
def test_one_rank(tmp_path, case):
    code, status, names = CASES[case]
    done = run_one(code, tmp_path)
    assert done.returncode == status, done.stderr
    assert traces(tmp_path / "run") == sorted(f"rank0_{name}.trace.json.gz" for name in names), done.stderr
    assert not hidden(tmp_path / "run")


@pytest.mark.slow
def test_on_a_rank_that_is_not_chosen_it_runs_as_written(tmp_path):
    code = "with profile() as p: train(3)\np.export_chrome_trace('theirs.json')"
    done = run_one(code, tmp_path, RANKSCOPE_RANKS="1")
    assert done.returncode == 0, done.stderr
    assert of_theirs(tmp_path)["theirs.json"] > 20
    assert traces(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("wait", [50, 1])
def test_a_profiler_that_records_nothing_is_named_at_the_end(tmp_path, wait):
    """Of five steps: one whose warm-up does not begin, and one whose warm-up does not end."""
    code = f"with profile(schedule=schedule(wait={wait}, warmup=99, active=1)) as p: train(5, p.step)"
    done = run_one(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "run") == []
    (theirs,) = read_rank_manifest(tmp_path / "run" / "ranks" / "rank0.json").script_profilers
    assert (theirs.name, theirs.treatment) == ("torch.profiler.profile, job.py:9", "its schedule recorded no step")
    assert done.stderr.splitlines()[-1] == (
        "rankscope: no trace was written. The script's own profiler: torch.profiler.profile, job.py:9 "
        "(its schedule recorded no step; it exported no trace)"
    )


@pytest.mark.slow
def test_a_window_that_cannot_be_saved_leaves_the_script_its_trace(tmp_path):
    code = (
        "import rankscope.capture.script_profilers.adopted_window as adopted\n"
        "def fails(path): raise OSError('no space')\n"
        "adopted.verify_json = fails\n"
        "with profile() as p: train(3)\np.export_chrome_trace('theirs.json')"
    )
    done = run_one(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "run") == []
    assert "no space" in read_rank_manifest(tmp_path / "run" / "ranks" / "rank0.json").failed[0].reason
    assert f"(adopted; its traces: {tmp_path / 'theirs.json'})" in done.stderr.splitlines()[-1]
    assert of_theirs(tmp_path)["theirs.json"] > 20


def test_take_over_in_python(tmp_path):
    code = (
        "import rankscope\n"
        "with rankscope.Profiler('mine', wait=0, warmup=1, active=2, take_over=True) as ours, profile() as p:\n"
        "    train(6, lambda: (ours.step(), p.step()))\n"
        "assert p.step_num == 6\nimport json, gzip\n"
        "p.export_chrome_trace('theirs.json'); assert json.load(open('theirs.json')) == {'traceEvents': []}\n"
        "p.export_chrome_trace('theirs.json.gz')\n"
        "assert json.load(gzip.open('theirs.json.gz')) == {'traceEvents': []}\n"
        "p.export_stacks('stacks'); assert open('stacks').read() == ''\n"
        "assert not p.events() and p.key_averages().table() == ''\n"
        "with torch.autograd.profiler.profile() as p: train(1)\n"
        "assert p.self_cpu_time_total == 0\n"
        "p.export_chrome_trace('plain.json.gz'); assert gzip.open('plain.json.gz').read() == b'{\"traceEvents\": []}'\n"
        "p.export_chrome_trace('missing/plain.json')\n"
    )
    done = run_one(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "mine") == ["rank0_iter1_2.trace.json.gz"]
    assert traces(tmp_path / "run") == []
