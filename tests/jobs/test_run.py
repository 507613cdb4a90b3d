"""Jobs that are really started: run directory, exit codes, signals, nobody left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rankscope
from rankscope.cli.run import script_profilers, uploads
from rankscope.errors import LaunchError
from rankscope.jobs.run import JobResult, make_run_dir, run_command, run_job
from rankscope.rundir.manifest import RankManifest, ScriptProfiler, WrittenTrace, to_json

LAUNCHER = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_\w+)$|(TORCHELASTIC|SLURM|PMIX?|PALS|OMPI|MV2|MVP|FLUX|RANKSCOPE|PET)_"
)
SOURCE = str(Path(__file__).parents[2] / "src")
PROFILED = """
import os, sys, torch, torch.distributed as dist, rankscope
dist.init_process_group("gloo")
# One write: both ranks share the pipe.
sys.stdout.write(f"rank {dist.get_rank()} argument {sys.argv[1]}\\n")
sys.stdout.flush()
with rankscope.Profiler(wait=1, warmup=1, active=1) as prof:
    for _ in range(4):
        dist.all_reduce(torch.ones(4))
        prof.step()
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in list(os.environ):
        if LAUNCHER.match(name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in (SOURCE, os.environ.get("PYTHONPATH", "")) if p))
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def script(folder: Path, code: str) -> Path:
    path = folder / "train.py"
    path.write_text(code)
    return path


def test_launch_gives_ranks_one_directory_and_one_run(tmp_path, capsys):
    result = rankscope.launch(script(tmp_path, PROFILED), "x y", nproc=2, run_dir=tmp_path / "run", timeout_s=600)
    assert result.exit_code == 0
    assert [p.name for p in result.traces()] == ["rank0_iter2_2.trace.json.gz", "rank1_iter2_2.trace.json.gz"]
    from rankscope.rundir.manifest import read_rank_manifest, read_run_manifest

    assert read_run_manifest(tmp_path / "run" / "run.json").run_id == result.run_id
    assert {read_rank_manifest(p).run_id for p in (tmp_path / "run" / "ranks").iterdir()} == {result.run_id}
    printed = capsys.readouterr().out
    assert "rank 0 argument x y" in printed
    assert "rank 1 argument x y" in printed
    assert "rank 1 argument x y" in result.log_tail


def test_a_job_that_fails(tmp_path):
    code = "import sys; print('before the end', flush=True); sys.exit(3)"
    # torchrun's own exit code is 1, whatever the script's.
    with pytest.raises(LaunchError, match=r"(?s)exit code 1;.*before the end") as failed:
        rankscope.launch(script(tmp_path, code), nproc=1, run_dir=tmp_path / "run", echo=False)
    assert "exitcode  : 3" in str(failed.value)
    assert "Traceback (most" not in str(failed.value)


LONG_S = 300
"""Nothing that is waited for here takes so long, on any machine."""


def number_in(path: Path) -> int:
    """The number that a process writes into a file, once it does."""
    until = time.monotonic() + LONG_S
    while not (path.exists() and path.read_text().endswith(".")):
        assert time.monotonic() < until, f"nobody has written {path.name}"
        time.sleep(0.05)
    return int(path.read_text()[:-1])


def test_a_job_that_hangs_is_ended(tmp_path, monkeypatch):
    code = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}.')\ntime.sleep(3600)"
    whole = subprocess.Popen.wait

    def wait(self, timeout=None):
        if timeout == 1:  # the job's time begins when its script does, however long that takes here
            number_in(tmp_path / "pid")
        return whole(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(LaunchError, match="ended after 1 s"):
        rankscope.launch(script(tmp_path, code), nproc=1, run_dir=tmp_path / "r", timeout_s=1, echo=False)
    assert gone(number_in(tmp_path / "pid"))


def gone(pid: int) -> bool:
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_job_and_nobody_is_left(tmp_path, number):
    code = "import os, time\nopen('pid', 'w').write(f'{os.getpid()}.')\ntime.sleep(3600)"
    script(tmp_path, code)
    runner = (
        "import signal, sys; from rankscope.jobs.run import run_job\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell in the background has it ignored
        "sys.exit(run_job(['--nproc-per-node=1'], ['train.py'], run_dir='run').exit_code)"
    )
    job = subprocess.Popen([sys.executable, "-c", runner], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        worker = number_in(tmp_path / "pid")
        job.send_signal(number)
        _, errors = job.communicate(timeout=LONG_S)
    finally:
        job.kill()
    assert job.returncode == 128 + number, errors
    # What torchrun itself would say; the script's own KeyboardInterrupt is the script's.
    assert "SignalException" not in errors
    assert "torch/distributed" not in "".join(line for line in errors.splitlines() if line.startswith("  File"))
    assert gone(worker)


def test_nohup_keeps_a_job_from_the_end_of_its_terminal(tmp_path):
    script(tmp_path, "import os, time\nopen('pid', 'w').write('1.')\nwhile not os.path.exists('go'): time.sleep(0.01)")
    runner = (
        "import signal, sys; from rankscope.jobs.run import run_job\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "sys.exit(run_job(['--nproc-per-node=1'], ['train.py'], run_dir='run').exit_code)"
    )
    job = subprocess.Popen([sys.executable, "-c", runner], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        number_in(tmp_path / "pid")
        job.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        _, errors = job.communicate(timeout=LONG_S)
    finally:
        job.kill()
    assert (job.returncode, errors) == (0, "")


def test_a_job_whose_output_cannot_be_shown_does_not_hang(tmp_path):
    def show(_line):
        raise UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range")

    line = [sys.executable, "-c", "for _ in range(4000): print('x' * 80)"]
    result = run_command(line, os.environ, run_dir=tmp_path / "run", output=show, timeout_s=LONG_S)
    assert (result.exit_code, result.log_tail) == (0, ("x" * 80 + "\n") * 40)


def test_no_nested_job(tmp_path, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(LaunchError, match="already rank 1 of 2"):
        run_job([], [str(script(tmp_path, ""))], run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


STEPS = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(9):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""
SHORT = ["--wait", "1", "--warmup", "1", "--active", "2"]


def test_run_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [make_run_dir(None) for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(f.name.startswith("rankscope_run_") and f.is_dir() for f in folders)
    assert make_run_dir("a/b") == tmp_path / "a" / "b"
    (tmp_path / "file").write_text("")
    for refused in ("file/x", "file", "n" * 300):
        assert make_run_dir(refused) == tmp_path / refused
    assert make_run_dir("~nobody-of-this-name/x") == tmp_path / "~nobody-of-this-name" / "x"


@pytest.mark.slow
@pytest.mark.parametrize(("how", "named"), [("run", "file/run"), ("exec", "n" * 300), ("exec", "file")])
def test_a_run_directory_that_cannot_be_made_stops_no_job(tmp_path, how, named):
    """One warning, of one of the ranks."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    script(tmp_path, STEPS)
    command = ["run", "--nproc-per-node", "2"] if how == "run" else ["exec"]
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", *command, "--run-dir", named, *SHORT, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("CaptureWarning") == done.stderr.count("cannot be written") == 1, done.stderr
    kept = list((tmp_path / "tmp").rglob("*.trace.json.gz"))
    assert len(kept) == (2 if how == "run" else 1)
    assert str(kept[0].parent) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_variable_that_names_no_directory_stops_no_job(tmp_path):
    """A word of the command line is refused; what a shell's profile has set is not the job's fault."""
    script(tmp_path, STEPS)
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", "1", *SHORT, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "RANKSCOPE_RUN_DIR": "file://elsewhere/x"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "RANKSCOPE_RUN_DIR: 'file://elsewhere/x' is not a directory" in done.stderr
    assert list(tmp_path.glob("rankscope_run_*/*.trace.json.gz"))


@pytest.mark.parametrize(
    "code",
    [
        "import rankscope; assert callable(rankscope.launch)",
        "import rankscope, rankscope.jobs; assert callable(rankscope.launch)",
        "import rankscope.jobs.run, rankscope; assert callable(rankscope.launch)",
        "import rankscope; f = rankscope.launch; import rankscope.jobs.run; assert callable(rankscope.launch)\n"
        "from rankscope import launch; assert launch is f",
    ],
)
def test_launch_can_be_called_whatever_was_imported(code):
    check = code + "\nimport sys; assert 'torch' not in sys.modules and 'polars' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr


def test_the_command(tmp_path):
    typer_testing = pytest.importorskip("typer.testing")
    import typer

    from rankscope.cli import run as module

    app = typer.Typer()
    app.command(cls=module.COMMAND, context_settings=module.CONTEXT_SETTINGS)(module.run)

    @app.command()
    def other() -> None: ...

    path = script(tmp_path, "import sys; sys.exit(0)")
    given = ["run", "--nproc-per-node", "1", "--run-dir", str(tmp_path / "run"), str(path), "--run-dir", "theirs"]
    done = typer_testing.CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    # A script without a profiler is told how to get one.
    assert f"No trace was written to {tmp_path / 'run'}" in done.output
    assert "rankscope.Profiler()" in done.output
    assert (tmp_path / "run").is_dir()
    failing = script(tmp_path, "import sys; sys.exit(5)")
    assert typer_testing.CliRunner().invoke(app, ["run", "--run-dir", str(tmp_path / "b"), str(failing)]).exit_code == 1


@pytest.mark.slow
def test_the_end_repeats_no_advice_that_a_rank_has_given(tmp_path):
    script(
        tmp_path,
        """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
""",
    )
    command = [sys.executable, "-m", "rankscope", "run", "--run-dir", "run", "--nproc-per-node", "1", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "the loop ended after 3 steps" in done.stderr
    assert done.stderr.splitlines()[-1] == f"No trace was written to {tmp_path / 'run'}."
    assert "rankscope.Profiler()" not in done.stderr


@pytest.mark.slow
def test_the_last_line_names_where_traces_are_kept(tmp_path):
    code = """
import os, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(9):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if step == 3:
        run = os.environ["RANKSCOPE_RUN_DIR"]
        for attempt in range(100):
            os.rename(run, f"{run}.gone{attempt}")
            try:
                open(run, "w").close()
                break
            except IsADirectoryError:
                pass  # a file was written there meanwhile
"""
    (tmp_path / "tmp").mkdir()
    script(tmp_path, code)
    command = [sys.executable, "-m", "rankscope", "run", "--run-dir", "run", "--nproc-per-node", "1"]
    done = subprocess.run(
        [*command, "--wait", "1", "--warmup", "1", "--active", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "tmp").rglob("*.trace.json.gz")
    assert done.stderr.splitlines()[-2:] == [
        f"1 trace could not be written to {tmp_path / 'run'}, kept in {kept.parent}",
        f"  rankscope gather RUN {kept.parent}",
    ]
    assert "No trace was written" not in done.stderr
    assert "lost" not in done.stderr


def test_the_traces_of_other_layouts_are_found(tmp_path):
    """`rankscope run --preset d9d` said that nothing was there."""
    for name in (
        "step_6/rank-1-trace.tar.gz",
        "vm_1.12.pt.trace.json",
        "rank0_iter3_5.trace.json.gz",
        "ranks/rank0.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    found = [path.relative_to(tmp_path).as_posix() for path in JobResult(0, tmp_path, "", "").traces()]
    assert found == ["rank0_iter3_5.trace.json.gz", "step_6/rank-1-trace.tar.gz", "vm_1.12.pt.trace.json"]


def test_traces_of_an_earlier_job_in_the_directory_are_not_its_own(tmp_path):
    (tmp_path / "rank0_steps5-6.trace.json").write_text('{"traceEvents":[]}')
    write = f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'rank0_steps7-8.trace.json').write_text('{{}}')"
    assert run_command([sys.executable, "-c", ""], os.environ, run_dir=tmp_path).traces() == []
    traces = run_command([sys.executable, "-c", write], os.environ, run_dir=tmp_path).traces()
    assert [path.name for path in traces] == ["rank0_steps7-8.trace.json"]


def test_manifests_of_an_earlier_job_in_the_directory_are_not_its_own(tmp_path):
    """Its script's profilers, and its ranks without a trace, were reported as those of the new job."""
    earlier = RankManifest(run_id="one", rank=0, script_profilers=(ScriptProfiler("theirs", "not adopted"),))
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank0.json").write_bytes(to_json(earlier))
    (tmp_path / "new.json").write_bytes(to_json(RankManifest(run_id="two", rank=1)))
    write = f"import os; os.rename('{tmp_path}/new.json', '{tmp_path}/ranks/rank1.json')"
    result = run_command([sys.executable, "-c", write], os.environ, run_dir=tmp_path)
    assert [manifest.rank for manifest in result.manifests()] == [1]
    assert script_profilers(result.manifests()) == []


@pytest.mark.slow
def test_a_directory_that_the_script_names_is_named_at_the_end(tmp_path):
    script(tmp_path, PROFILED.replace("rankscope.Profiler(", "rankscope.Profiler('other', "))
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", "2", "--run-dir", "run", "train.py", "x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    other = tmp_path / "other"
    assert done.stderr.splitlines()[-2:] == [
        f"Traces: {other}, which the script names",
        "  rankscope summary other",
    ]
    assert "No trace" not in done.stderr


def test_what_is_suggested_for_traces_that_were_not_uploaded_works(tmp_path):
    """A missing bucket cannot be gathered from."""
    (tmp_path / "ranks").mkdir()
    result = JobResult(0, tmp_path, "r", "")
    for uploaded, sources in ([False, False], tmp_path), ([True, False], f"s3://bucket/run {tmp_path}"):
        for rank, state in enumerate(uploaded):
            file = f"rank{rank}_iter1_2.trace.json.gz"
            (tmp_path / file).write_bytes(b"")
            manifest = RankManifest(run_id="r", rank=rank, written=(WrittenTrace(file, uploaded=state),))
            (tmp_path / "ranks" / f"rank{rank}.json").write_bytes(to_json(manifest))
        assert uploads(result, "s3://bucket/run").splitlines()[-1] == f"  rankscope gather RUN {sources}"


FAILS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    if step == 5 and dist.get_rank() == 1:
        raise ValueError("bad batch")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_job_that_fails_says_which_rank_at_the_end(tmp_path):
    script(tmp_path, FAILS)
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", "2", "--run-dir", "run", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    why, command = done.stderr.splitlines()[-2:]
    assert why.startswith(f"Rank 1 failed with ValueError: bad batch, at <module> ({tmp_path / 'train.py'}:8)"), why
    assert command == "  rankscope hang run"
    assert "OMP_NUM_THREADS" not in done.stderr


@pytest.mark.slow
def test_an_argument_that_begins_like_torchruns_options_reaches_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('GOT', *sys.argv[1:])\n")
    given = ("--start", "3", "--", "--rdzv", "-m")
    line = [sys.executable, "-m", "rankscope", "run", "--nproc-per-node", "1", str(script), *given]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"GOT {' '.join(given)}" in ran.stdout, ran.stderr
