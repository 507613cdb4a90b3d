"""Every experiment goes on where it was ended, and refuses to mix what was begun with other settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rankscope.cli.measure.options import progress
from rankscope.cli.measure.overhead import overhead
from rankscope.errors import ConfigError, LaunchError
from rankscope.experiments.measure.binding import Bindings, measure_binding
from rankscope.experiments.measure.buckets import Factors, measure_buckets
from rankscope.experiments.measure.experiment import LINE, count_finished_jobs
from rankscope.experiments.measure.files import load
from rankscope.experiments.measure.jobs import Outcome, Start, target_of
from rankscope.experiments.measure.overhead import measure_overhead
from rankscope.experiments.measure.profiler import measure_profiler
from rankscope.experiments.measure.results import Binding, Buckets, Overhead, ProfilerCost, Scaling
from rankscope.experiments.measure.sampling import Sampling
from rankscope.experiments.measure.scaling import Study, measure_scaling
from rankscope.experiments.measure.topology import Core, Host
from rankscope.rundir.measurement import (
    Block,
    RankMeasurement,
    digest_of,
    read_measurements,
    write_measurement,
    write_plan,
)

MS = 1_000_000
FEW = Sampling(blocks=1, block_steps=2, repeats=2, traced_steps=0)
HOST = Host(cores=(Core(0, 0, 0, (0,)), Core(0, 0, 1, (1,))), devices=(), vendor=None, source=("/sys",))
PLACES = {
    "overhead": 2,
    "profiler": 2,
    "scaling": 6,
    "buckets": 6,
    "buckets of FSDP2": 3,
    "binding": 4,
}
"""How many jobs each experiment below has."""


class Machine:
    """Jobs that are over at once: what their ranks measured follows from the plan."""

    def __init__(self, wrapper="ddp"):
        self.wrapper = wrapper
        self.started = []
        self.ends_at = None
        """Which job somebody ends, counted from 0."""
        self.fails = ()
        self.loads = ()
        """Files that the script imports."""
        self.edits = None
        """Of these, one that somebody edits behind each job."""

    def run(self, _target, start, plan, *, timeout_s, within):
        folder = Path(plan.out)
        assert not folder.exists(), "what was left of a job that was ended is not to be read with the next"
        write_plan(plan)
        self.started.append(f"{folder.parent.name}/{folder.name}")
        if self.ends_at == len(self.started) - 1:
            raise KeyboardInterrupt
        if folder.name in self.fails:
            raise LaunchError("it failed", path=folder)
        for rank in range(start.ranks):
            blocks = [
                Block(name, number, tuple((40 + k + number + rank) * MS for k in range(plan.steps)))
                for number, names in enumerate(plan.rounds)
                for name in names
            ]
            write_measurement(
                folder,
                RankMeasurement(
                    rank, start.ranks, rank, "host", "complete", 99, "host", "CPU", "2.13",
                    wrapper=self.wrapper, cpus=plan.cpus[rank] if plan.cpus else "0-1", blocks=tuple(blocks),
                    sources={str(path): digest_of(path.read_bytes()) for path in self.loads} if rank == 0 else {},
                ),
            )  # fmt: skip
        if self.edits is not None:
            self.edits.write_text(f"STATE = {len(self.started)}\n")
        return Outcome(folder, tuple(read_measurements(folder)))


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr("rankscope.experiments.measure.experiment.run", made.run)
    monkeypatch.setattr(
        "rankscope.experiments.measure.experiment.load_average", lambda: 0.1
    )  # what is calls of a busy machine differs
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return made


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("pass\n")
    return path


def measure(kind, words, out, sampling=FEW, on_progress=lambda *_: None, **further):
    target = target_of([str(word) for word in words])
    start = further.pop("start", Start(ranks=2))
    if kind == "overhead":
        return measure_overhead(target, out, start, sampling, on_progress)
    if kind == "profiler":
        return measure_profiler(target, out, start, sampling, on_progress)
    if kind == "scaling":
        return measure_scaling(target, out, further.get("study", Study(ranks=(1, 2), devices=2)), sampling, on_progress)
    if kind.startswith("buckets"):
        factors = Factors(bucket_cap_mb=(1, 25), switches=())
        return measure_buckets(target, out, start, further.get("factors", factors), sampling, on_progress)
    bindings = Bindings(["compact"], **further)
    return measure_binding(target, out, start, bindings, sampling=sampling, on_progress=on_progress, host=HOST)


@pytest.mark.parametrize("kind", PLACES)
def test_it_goes_on_where_it_was_ended(tmp_path, machine, script, kind):
    machine.wrapper = "fsdp2" if "FSDP2" in kind else "ddp"
    whole = measure(kind, [script], tmp_path / "whole")
    every = list(machine.started)
    assert len(every) == len(set(every)) == PLACES[kind]

    ended = len(every) - 1
    machine.started, machine.ends_at = [], ended
    out, calls = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        measure(kind, [script], out)
    name = kind.partition(" ")[0]
    assert count_finished_jobs(out, name) == ended
    # What there is can be read meanwhile, and says that it is not all.
    part = load(type(whole), out)
    assert any("jobs are finished: run the same command" in note for note in part.setting.notes)

    machine.started, machine.ends_at = [], None
    result = measure(kind, [script], out, on_progress=lambda *call: calls.append(call))
    assert machine.started == [every[-1]]
    assert any(within == LINE and "finished from before" in job for job, _, _, within in calls)
    same = {"created": "", "command": [], "load": None, "target": ""}
    assert replace(result, setting=replace(result.setting, **same)) == replace(
        whole, setting=replace(whole.setting, **same)
    )
    # And once it is all there, nothing is run.
    machine.started = []
    measure(kind, [script], out)
    assert machine.started == []


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    ("sampling", "words", "message"),
    [
        (replace(FEW, block_steps=3), [], "--block-steps 2 then, 3 now"),
        (replace(FEW, seed=7), [], "--seed 0 then, 7 now"),
        (FEW, ["--lr", "1"], r"script .*train\.py then, .*train\.py --lr 1 now"),
    ],
)
def test_other_settings_are_refused_in_words(tmp_path, machine, script, kind, sampling, words, message):
    machine.wrapper = "fsdp2" if "FSDP2" in kind else "ddp"
    out = tmp_path / "out"
    measure(kind, [script], out)
    before = (out / f"{kind.partition(' ')[0]}.json").read_bytes()
    machine.started = []
    with pytest.raises(ConfigError, match=message):
        measure(kind, [script, *words], out, sampling)
    assert machine.started == []
    assert (out / f"{kind.partition(' ')[0]}.json").read_bytes() == before


def test_what_else_is_refused(tmp_path, machine, script, monkeypatch):
    out = tmp_path / "out"
    measure("overhead", [script, "--token", "abc123"], out)
    with pytest.raises(ConfigError, match="another key, token or password"):
        measure("overhead", [script, "--token", "abc124"], out)
    assert "abc123" not in (out / "jobs" / "overhead" / "settings.json").read_text()
    with pytest.raises(ConfigError, match="--nproc 2 then, 3 now"):
        measure("overhead", [script, "--token", "abc123"], out, start=Start(ranks=3))
    with pytest.raises(ConfigError, match="--launcher not given then, srun now"):
        measure("overhead", [script, "--token", "abc123"], out, start=Start(ranks=2, launcher="srun"))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS 1 then, 4 now"):
        measure("overhead", [script, "--token", "abc123"], out)
    monkeypatch.delenv("OMP_NUM_THREADS")
    script.write_text("pass  # edited\n")
    with pytest.raises(ConfigError, match="the script has changed since"):
        measure("overhead", [script, "--token", "abc123"], out)
    # A function's file is the script, too.
    script.write_text("def step(): pass\n")
    measure("overhead", [f"{script}:step"], tmp_path / "function")
    script.write_text("def step(): ...\n")
    with pytest.raises(ConfigError, match="the script has changed since"):
        measure("overhead", [f"{script}:step"], tmp_path / "function")
    with pytest.raises(ConfigError, match="--list not given then, 0:1 now"):
        measure("binding", [script], tmp_path / "b")
        measure("binding", [script], tmp_path / "b", cpus="0:1")
    study = Study(ranks=(1, 2), mode="strong")
    with pytest.raises(ConfigError, match="--strong not given then, given now"):
        measure("scaling", [script], tmp_path / "s")
        measure("scaling", [script], tmp_path / "s", study=study)


@pytest.mark.parametrize("kind", PLACES)
def test_an_edited_module_of_the_script_is_another_program(tmp_path, machine, script, kind):
    machine.wrapper = "fsdp2" if "FSDP2" in kind else "ddp"
    module, out = tmp_path / "model.py", tmp_path / "out"
    module.write_text("STATE = 0\n")
    machine.loads = (module,)
    measure(kind, [script], out)
    result = (out / f"{kind.partition(' ')[0]}.json").read_bytes()
    machine.started = []
    module.write_text("STATE = 1\n")
    with pytest.raises(ConfigError, match=r"model\.py, which the script loads, has changed since"):
        measure(kind, [script], out)
    assert machine.started == []
    assert (out / f"{kind.partition(' ')[0]}.json").read_bytes() == result
    # As it was, it goes on; what the job made for itself and is gone again is no matter.
    module.write_text("STATE = 0\n")
    measure(kind, [script], out)
    module.unlink()
    measure(kind, [script], out)
    assert machine.started == []


def test_a_module_that_is_edited_meanwhile(tmp_path, machine, script):
    module = tmp_path / "model.py"
    module.write_text("STATE = 0\n")
    machine.loads, machine.edits = (module,), module
    with pytest.raises(
        ConfigError, match=r"model\.py was changed while this experiment ran: job-1 .* from job-0"
    ) as raised:
        measure("overhead", [script], tmp_path / "out")
    assert "restore it" in str(raised.value)
    # The job of the other state is not kept: once the file is as it was, that one is run anew.
    machine.edits = None
    module.write_text("STATE = 0\n")
    machine.started = []
    measure("overhead", [script], tmp_path / "out")
    assert machine.started == ["overhead/job-1"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"settings": 3}'])
def test_settings_that_are_none(tmp_path, machine, script, content):
    out = tmp_path / "out"
    measure("overhead", [script], out)
    (out / "jobs" / "overhead" / "settings.json").write_text(content)
    with pytest.raises((ConfigError, LaunchError, Exception), match=r"cannot be read|another version"):
        measure("overhead", [script], out)


def test_a_measurement_of_the_overhead_stops_when_it_is_precise_enough(tmp_path, machine, script):
    # Its jobs are all alike.
    sampling = replace(FEW, blocks=5, repeats=5)
    target, so_far = target_of([str(script)]), []

    def measured(out, **further):
        return measure_overhead(target, out, Start(ranks=2), sampling, on_result=so_far.append, **further)

    result = measured(tmp_path / "out")
    assert len(machine.started) == 3
    assert [each.setting.repeats for each in so_far] == [1, 2]
    assert result.setting.repeats == 3
    assert any(note.startswith("stopped after 3 of at most 5 jobs") for note in result.setting.notes)
    assert not any("are finished" in note for note in result.setting.notes)
    assert not any("stopped" in note for each in so_far for note in each.setting.notes)
    # The same command has nothing to run, and the same result.
    again = measured(tmp_path / "out")
    assert len(machine.started) == 3
    assert again.measured_overhead == result.measured_overhead and again.setting.notes == result.setting.notes
    # Whoever wants all jobs gets them, by the same command with another precision too.
    everything = measured(tmp_path / "out", precision=0)
    assert len(machine.started) == 5
    assert everything.setting.repeats == 5
    assert not any("stopped" in note for note in everything.setting.notes)


def test_the_result_so_far_is_printed_after_each_job(tmp_path, machine, script, monkeypatch):
    monkeypatch.setattr("rankscope.cli.measure.options.accelerators", lambda: 0)
    options = ["--blocks", "5", "--block-steps", "2", "--trace-steps", "0", "-o", str(tmp_path / "out"), str(script)]
    app = typer.Typer()
    app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(overhead)
    result = CliRunner().invoke(app, options, catch_exceptions=False)
    assert result.exit_code == 0
    lines = [line for line in result.stderr.splitlines() if line.startswith("overhead: after")]
    assert [line.split(":")[1] for line in lines] == [" after 1 job, of this job only", " after 2 jobs"]
    assert all("of a step, measured with and without it" in line for line in lines)


def test_repeats_sizes_and_variants_can_be_added(tmp_path, machine, script):
    out = tmp_path / "out"
    measure("overhead", [script], out)
    machine.started = []
    result = measure("overhead", [script], out, replace(FEW, repeats=3, limit_s=1.0))
    assert machine.started == ["overhead/job-2"]
    assert result.sync.step.blocks == 3

    measure("scaling", [script], out)
    machine.started = []
    measure("scaling", [script], out, study=Study(ranks=(1, 2, 4), devices=4))
    assert sorted(machine.started) == ["scaling/4-0", "scaling/4-1"]

    measure("buckets", [script], out)
    machine.started = []
    measure("buckets", [script], out, factors=Factors(bucket_cap_mb=(5, 25, 1), switches=()))
    assert sorted(machine.started) == ["buckets/bucket_cap_mb-5-0", "buckets/bucket_cap_mb-5-1"]
    # All three lie in one directory, and know their own.
    assert [load(kind, out).measurement for kind in (Overhead, Scaling, Buckets)] == ["overhead", "scaling", "buckets"]


def test_two_experiments_in_one_directory_do_not_take_each_others_jobs(tmp_path, machine, script):
    for kind in ("overhead", "profiler"):
        machine.started = []
        measure(kind, [script], tmp_path)
        assert machine.started == [f"{kind}/job-0", f"{kind}/job-1"]
    assert {variant.name for variant in load(ProfilerCost, tmp_path).variants} >= {"none", "waiting", "all"}


@pytest.mark.parametrize(
    ("kind", "failing"), [("scaling", "2-0"), ("buckets", "bucket_cap_mb-1-0"), ("binding", "compact-0")]
)
def test_what_failed_is_tried_again(tmp_path, machine, script, kind, failing):
    machine.fails = (failing,)
    result = measure(kind, [script], tmp_path)
    states = [each.state for each in (result.sizes if kind == "scaling" else result.variants)]
    assert sorted(set(states)) == ["done", "failed"]
    assert any("the same command with this -o tries again" in note for note in result.setting.notes)
    machine.fails, machine.started = (), []
    result = measure(kind, [script], tmp_path)
    assert sorted(machine.started) == sorted(f"{kind}/{failing[:-1]}{repeat}" for repeat in range(2))
    assert {each.state for each in (result.sizes if kind == "scaling" else result.variants)} == {"done"}


def test_a_failure_of_the_only_job_is_raised(tmp_path, machine, script):
    machine.fails = ("job-1",)
    with pytest.raises(LaunchError, match="it failed"):
        measure("overhead", [script], tmp_path)
    assert count_finished_jobs(tmp_path, "overhead") == 1
    machine.fails = ("none-0", "compact-0")
    with pytest.raises(LaunchError, match="no job succeeded"):
        measure("binding", [script], tmp_path)


def test_a_job_by_another_plan_is_run_anew(tmp_path, machine, script):
    measure("binding", [script], tmp_path)
    machine.started = []
    # The same command on another host, whose cores have other numbers.
    host = replace(HOST, cores=(Core(0, 0, 0, (4,)), Core(0, 0, 1, (5,))))
    bindings = Bindings(["compact"])
    measure_binding(target_of([str(script)]), tmp_path, Start(ranks=2), bindings, sampling=FEW, host=host)
    assert sorted(machine.started) == ["binding/compact-0", "binding/compact-1"]
    assert [each.cpus for each in load(Binding, tmp_path).variants] == [[], ["4", "5"]]


def test_how_to_go_on_is_said(tmp_path, machine, script, capsys, monkeypatch):
    out = tmp_path / "a b"
    machine.ends_at = 1
    monkeypatch.setattr("sys.argv", ["rankscope", "measure", "overhead", str(script)])
    with pytest.raises(KeyboardInterrupt), progress("overhead", out, None) as on_progress:
        measure("overhead", [script], out, on_progress=on_progress)
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "overhead: job, repeat 1 (1 of 2)"
    assert errors[-3:] == [
        "overhead: interrupted",
        "overhead: 1 finished job is kept",
        f"  → to continue: rankscope measure overhead -o '{out}' {script}",
    ]
    # Where -o was given, the command is the same; a key in it is not printed.
    machine.started, machine.ends_at, machine.fails = [], None, ("job-1",)
    monkeypatch.setattr("sys.argv", ["rankscope", "measure", "overhead", "-o", str(out), str(script), "--token", "abc"])
    with pytest.raises(LaunchError), progress("overhead", out, out) as on_progress:
        measure("overhead", [script], out, on_progress=on_progress)
    errors = capsys.readouterr().err
    assert "overhead: 1 of 2 jobs are finished from before" in errors
    assert f"→ to continue: the same command with -o '{out}'" in errors
    assert "abc" not in errors
    # Who is refused is not told to go on.
    with pytest.raises(ConfigError), progress("overhead", out, out) as on_progress:
        measure("overhead", [script], out, replace(FEW, seed=3), on_progress=on_progress)
    assert "go on" not in capsys.readouterr().err


def test_two_at_once_in_one_directory(tmp_path, machine, script):
    fcntl = pytest.importorskip("fcntl")
    measure("overhead", [script], tmp_path)
    with (tmp_path / "jobs" / "overhead" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another `rankscope measure overhead` is running"):
            measure("overhead", [script], tmp_path)
    measure("overhead", [script], tmp_path)


def test_the_load_is_that_of_when_it_was_measured(tmp_path, machine, script, monkeypatch):
    loads = iter([0.1, 0.1, 3.0, 3.0, 7.0, 7.0, 7.0])
    monkeypatch.setattr("rankscope.experiments.measure.experiment.load_average", lambda: next(loads))
    machine.ends_at = 1
    with pytest.raises(KeyboardInterrupt):
        measure("overhead", [script], tmp_path)
    machine.ends_at = None
    assert measure("overhead", [script], tmp_path).setting.load == 3.0
    # Shown again on a busy machine, nothing is run, and nothing was.
    assert measure("overhead", [script], tmp_path).setting.load == 3.0
    assert json.loads((tmp_path / "jobs" / "overhead" / "settings.json").read_text())["load"] == 3.0
