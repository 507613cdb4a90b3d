"""Real jobs under every experiment, and the errors for wrong use."""

from __future__ import annotations

import json
import signal
import socket
from dataclasses import replace

import pytest
from tests.ports import free_port
from typer.testing import CliRunner

from rankscope.cli import make_app
from rankscope.cli.measure.options import target_of_words
from rankscope.errors import LaunchError, RankscopeError
from rankscope.experiments.measure.binding import Bindings, measure_binding
from rankscope.experiments.measure.buckets import BASE, Factors, measure_buckets
from rankscope.experiments.measure.files import load_all, save
from rankscope.experiments.measure.jobs import Start, run, target_of
from rankscope.experiments.measure.overhead import measure_overhead
from rankscope.experiments.measure.profiler import measure_profiler
from rankscope.experiments.measure.results import Scaling
from rankscope.experiments.measure.sampling import Sampling
from rankscope.experiments.measure.scaling import Study, measure_scaling
from rankscope.jobs.run import JobResult
from rankscope.rundir.measurement import Plan

from .test_results import OVERHEAD, SETTING

FEW = Sampling(blocks=2, block_steps=2, warmup_steps=2, traced_steps=0, timeout_s=900)
TRAIN = """
import os, sys, torch, torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(8, 64)
def train_step():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
LOOP = TRAIN + "for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10**6):\n    train_step()\n"
WATCHING = """
import os, sys, torch
from rankscope.capture.workloads import fsdp

def say(optimizer, *_):
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with open("{folder}/given" + os.environ["RANK"], "a") as file:
        file.write(str(sum(p.numel() for p in parameters if p.grad is not None and p.grad.shape == p.shape)) + "\\n")

made = torch.optim.AdamW.__init__

def watched(self, *args, **options):
    made(self, *args, **options)
    self.register_step_pre_hook(say)

torch.optim.AdamW.__init__ = watched
sys.argv[1:] = ["--no-profile", "--steps", "1000", *sys.argv[1:]]
fsdp.main()
"""


@pytest.fixture
def script(tmp_path):
    def write(text=LOOP):
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


def called(*words):
    return CliRunner().invoke(make_app(), ["measure", *map(str, words)])


def test_help_and_unknown_words(tmp_path):
    assert "overhead" in called("--help").output
    assert "--nproc" in called("scaling", "--help").output
    for words, message in [
        (("overhead", "no.py"), "no such script"),
        (("scaling", "--nproc", "x", "resnet18"), "not a list of whole numbers"),
        (("scaling", "--nproc", "0", "resnet18"), "counts from 1"),
        (("scaling", "--strong", "resnet18"), "needs a batch to divide"),
        (("scaling", "--global-batch", "8", "resnet18"), "add --strong"),
        (("scaling", "--plot", "x.gif", "resnet18"), ".png"),
        (("binding", "--affinities", "odd", "resnet18"), "not a binding"),
        (("binding", "--affinities", "list", "resnet18"), "--list"),
        (("buckets", "--bucket-cap-mb", "x", "resnet18"), "not a list of sizes"),
        (("buckets", "--bucket-cap-mb", "-1", "resnet18"), "above 0 MiB"),
        (("buckets", "--bucket-cap-mb", "1,nan", "resnet18"), "above 0 MiB"),
        (("buckets", "--first-bucket-mb", "inf", "resnet18"), "above 0 MiB"),
        (("show", str(tmp_path)), "no result"),
    ]:
        done = called(*words)
        assert isinstance(done.exception, RankscopeError), (words, done.output)
        assert message in str(done.exception)


def test_what_is_shown_again(tmp_path):
    save(OVERHEAD, tmp_path)
    assert json.loads(called("show", tmp_path, "-f", "json").output)["measurement"] == "overhead"
    # Without a study there is no curve, and nobody is to wait for one.
    done = called("show", tmp_path, "--plot", tmp_path / "curve.svg")
    assert "no scaling study" in str(done.exception)
    save(Scaling(SETTING, "strong", None, []), tmp_path)
    # Two results are one document still.
    found = json.loads(called("show", tmp_path, "-f", "json").output)
    assert sorted(each["measurement"] for each in found) == ["overhead", "scaling"]


def test_more_ranks_than_devices(monkeypatch, script):
    monkeypatch.setattr("rankscope.cli.measure.options.accelerators", lambda: 2)
    done = called("overhead", "--nproc", 4, script())
    assert "4 ranks are more than the 2 devices here" in str(done.exception)


@pytest.mark.slow
def test_a_script_as_it_is_beside_a_profiler_of_its_own(tmp_path, script):
    # One rank: the wrapper is there, and the whole plan is run. Its own profiler must not be measured with it.
    own = LOOP.replace(
        "for _ in",
        "import rankscope\nprof = rankscope.Profiler('mine', wait=0, warmup=1, active=1)\nprof.start()\nfor _ in",
    ).replace("    train_step()\n", "    train_step(); prof.step()\n")
    # Parts that are large against what a busy machine adds to them.
    own = own.replace(
        "def train_step", "model.register_forward_hook(lambda *_: time.sleep(0.1))\n"
        "next(model.parameters()).register_hook(lambda _: time.sleep(0.1))\ndef train_step",
    ).replace("import os,", "import os, time,", 1)  # fmt: skip
    result = measure_overhead(target_of([script(own)]), tmp_path / "out", Start(ranks=1), replace(FEW, traced_steps=2))
    assert (result.wrapper, result.world_size) == ("ddp", 1)
    parts = [result.sync.forward, result.sync.backward, result.sync.optimizer, result.sync.rest]
    assert all(part is not None and part.median_ns > 0 for part in parts)
    assert min(result.sync.forward.median_ns, result.sync.backward.median_ns) >= 100e6
    assert sum(part.median_ns for part in parts) == pytest.approx(result.sync.step.median_ns, rel=0.5)
    assert (result.sync.step.samples, result.sync.step.blocks) == (4, 2)
    assert result.sync.step.low_ns is None
    assert any("too few for an interval" in note for note in result.setting.notes)
    assert result.traced is not None
    assert result.traced.steps == 2
    assert not list(tmp_path.rglob("mine"))
    assert load_all(tmp_path / "out") == [result]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--fsdp1"]])
def test_fsdp_without_gradient_synchronization(tmp_path, words):
    watching = tmp_path / "watching.py"
    watching.write_text(WATCHING.format(folder=str(tmp_path)))
    small = ["--layers", "2", "--width", "64", "--tokens", "16"]
    # The optimizer works on gradients of the shards in both conditions: each of its steps says what it was given.
    target = target_of([str(watching), *words, *small])
    result = measure_overhead(target, tmp_path / "out", Start(ranks=2), FEW)
    assert result.wrapper == ("fsdp1" if "--fsdp1" in words else "fsdp2")
    assert any("FSDP" in note for note in result.setting.notes)
    for rank in range(2):
        given = (tmp_path / f"given{rank}").read_text().split()
        # 2 steps of warm-up, and 2 rounds of 2 conditions with 1 step to settle and 2 that count.
        assert len(given) == 2 + 2 * 2 * 3
        assert len(set(given)) == 1
        assert int(given[0]) > 0


@pytest.mark.slow
def test_a_function_instead_of_a_script(tmp_path, script):
    target = target_of([script(TRAIN) + ":train_step"])
    result = measure_overhead(target, tmp_path / "out", Start(ranks=2), FEW)
    assert result.world_size == 2
    assert result.sync.optimizer is not None


@pytest.mark.slow
def test_what_the_profiler_costs(tmp_path, script):
    result = measure_profiler(target_of([script()]), tmp_path / "out", Start(ranks=1), replace(FEW, blocks=1))
    names = [variant.name for variant in result.variants]
    assert names[:3] == ["none", "waiting", "recording"]
    assert names[-1] == "all"
    by_name = {variant.name: variant for variant in result.variants}
    assert by_name["none"].stop is None
    assert by_name["waiting"].bytes_per_step is None
    # Stacks make a trace larger, whatever the machine does meanwhile.
    assert by_name["with_stack"].bytes_per_step > by_name["recording"].bytes_per_step > 0


@pytest.mark.slow
def test_ddps_buckets(tmp_path, script):
    factors = Factors(bucket_cap_mb=(0.01,), switches=("static_graph",))
    sampling = replace(FEW, blocks=1, repeats=1, traced_steps=2)
    result = measure_buckets(target_of([script()]), tmp_path / "out", Start(ranks=2), factors, sampling)
    by_name = {variant.name: variant for variant in result.variants}
    assert list(by_name) == [BASE, "bucket_cap_mb 0.01", "static_graph"]
    # Two layers of 64 x 64 and 64 floats: 16,640 bytes each, in one bucket of DDP's own size, in two of 10 KiB.
    assert by_name[BASE].bucket_bytes == [2 * 16_640]
    assert len(by_name["bucket_cap_mb 0.01"].bucket_bytes) > 1
    assert sum(by_name["bucket_cap_mb 0.01"].bucket_bytes) == 2 * 16_640
    for variant in result.variants:
        assert variant.traced.all_reduces == len(variant.bucket_bytes)
    assert result.recommendation.variant is None


@pytest.mark.slow
def test_bindings(tmp_path, script):
    sampling = replace(FEW, repeats=1)
    bindings = Bindings(["compact"], cores=1)
    result = measure_binding(target_of([script()]), tmp_path / "out", Start(ranks=1), bindings, sampling=sampling)
    by_name = {variant.name: variant for variant in result.variants}
    assert by_name["none"].base
    assert by_name["none"].state == "done"
    # One core of several is another binding than none; the job says itself where it ran.
    assert by_name["compact"].state == "done"
    assert len(by_name["compact"].cpus) == 1


@pytest.mark.slow
def test_a_size_that_fails_does_not_end_the_study(tmp_path, script):
    failing = LOOP.replace(
        "model = torch", "assert os.environ.get('WORLD_SIZE') != '2', 'two are too many'\nmodel = torch", 1
    )
    study = Study(ranks=(1, 2), devices=2)
    result = measure_scaling(target_of([script(failing)]), tmp_path / "out", study, FEW)
    states = {size.name: size.state for size in result.sizes}
    assert states == {"plain": "done", "1": "done", "2": "failed"}
    assert "two are too many" in next(size.error for size in result.sizes if size.name == "2")


@pytest.mark.slow
def test_wrong_use_is_told(tmp_path, script):
    variables = f"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()}"
    alone = Start(ranks=1, launcher=f"env {variables}")  # a torchrun would load torch once more
    never = target_of([script("import torch\nprint('no training')\n")])
    with pytest.raises(LaunchError, match="without an optimizer step"):
        measure_overhead(never, tmp_path / "never", alone, FEW)
    unwrapped = target_of([script(LOOP.replace("if dist.is_initialized():", "if False:"))])
    with pytest.raises(LaunchError, match="no DistributedDataParallel"):
        measure_overhead(unwrapped, tmp_path / "unwrapped", alone, FEW)
    short = target_of([script(), "4"])
    with pytest.raises(LaunchError, match="ended after 4 steps, before one round"):
        measure_overhead(short, tmp_path / "short", alone, FEW)
    half = target_of([script(), "6"])  # two steps of warm-up, and the three of one condition's block
    for _ in range(2):  # nor is it kept as a job that went through
        with pytest.raises(LaunchError, match="ended after 6 steps, before one round"):
            measure_overhead(half, tmp_path / "half", alone, FEW)
    early = measure_overhead(target_of([script(), "12"]), tmp_path / "early", alone, FEW)
    assert any("ended before the plan was complete" in note for note in early.setting.notes)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ("--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-backend=static")
        with pytest.raises(LaunchError, match="the port is used by another job"):
            measure_overhead(target_of([script()]), tmp_path / "port", Start(ranks=1, torchrun=options), FEW)
    with pytest.raises(LaunchError, match="no-such-launcher could not be started"):
        start = Start(ranks=1, launcher="no-such-launcher -n {ranks}")
        run(target_of([script()]), start, Plan(str(tmp_path / "l"), (("a",),)), timeout_s=60, within=lambda text: None)


def test_who_interrupts_means_the_experiment(tmp_path, monkeypatch):
    started = []

    def ended(*_args, **_more):
        started.append(1)
        return JobResult(130, tmp_path, "r", "", signal.SIGINT)

    monkeypatch.setattr("rankscope.experiments.measure.jobs.run_job", ended)
    script = tmp_path / "train.py"
    script.write_text("")
    study = Study(ranks=(1, 2), plain=False)
    with pytest.raises(KeyboardInterrupt):
        measure_scaling(target_of([str(script)]), tmp_path / "out", study, FEW)
    assert len(started) == 1


def test_an_option_behind_the_script_is_spoken_of(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("")
    target_of_words([str(script), "--nproc", "2", "--lr=1"])
    assert "note: --nproc after" in capsys.readouterr().err
    target_of_words([str(script), "--lr=1"])
    assert capsys.readouterr().err == ""
