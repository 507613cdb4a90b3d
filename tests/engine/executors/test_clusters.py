"""Executors on real clusters: a Dask scheduler with workers in other directories, and the processes of an MPI job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kineto import small_step, write_ranks
from tests.mpich import mpich

from rankscope.engine.executors import make_executor, remote
from rankscope.errors import ConfigError

pytestmark = pytest.mark.slow
DASK = "import distributed.cli.dask_{0} as program, sys; sys.argv[0] = 'dask'; program.main()"
MPI = {
    "openmpi": ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe"],
    "mpich": ["mpiexec.mpich"],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "run", {rank: small_step(waiting=10 * (rank == 2)) for rank in range(6)})


class Cluster:
    """A scheduler and two workers, each in a process and a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, {}
        self.file = folder / "scheduler.json"
        where = ("--scheduler-file", str(self.file), "--no-dashboard")
        self.start("scheduler", "--host", "127.0.0.1", "--port", "0", *where)
        self._until(self.file.exists)
        for number in (1, 2):
            self.start("worker", "--nthreads", "1", *where, number=number)

    def start(self, program: str, *arguments: str, number: int = 0) -> None:
        name = f"{program}{number}"
        home = self.folder / name
        home.mkdir(parents=True)
        with (home / "log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-c", DASK.format(program), *arguments],
                cwd=home, stdout=log, stderr=log, env={**os.environ, "HOME": str(home)}, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """End a process and its children at once: a worker's nanny would start it again."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def close(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is None:
                self.kill(name)

    def _until(self, done: Callable[[], bool]) -> None:
        for _ in range(600):
            if done():
                return
            time.sleep(0.1)
        raise AssertionError("the scheduler did not start")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="the package distributed is not installed")
    started = Cluster(tmp_path / "cluster")
    yield started
    started.close()


def in_a_program(folder: Path, code: str) -> str:
    """What a program prints: a connection stays until its program ends."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


PROGRAM = """
import json, sys, rankscope
run = rankscope.open("run", executor={executor!r})
print(json.dumps([run.kernels().to_dicts(), run.stragglers().to_dicts(), [f.to_json() for f in run.diagnose()]]))
"""


def test_workers_of_a_scheduler_give_what_one_process_gives(cluster: Cluster, run: Path) -> None:
    remotely = in_a_program(run.parent, PROGRAM.format(executor=f"dask:{cluster.file}"))
    shutil.rmtree(os.environ["RANKSCOPE_CACHE"])
    assert json.loads(remotely) == json.loads(in_a_program(run.parent, PROGRAM.format(executor="serial")))
    # The workers' HOME is another: their tables went to the cache of the program.
    assert not list((cluster.folder / "worker1").rglob("*.parquet"))


KILLING = """
import os, signal, sys, time, rankscope
from rankscope.engine.executors import run_tasks

def outlive(number):
    time.sleep(0.2)
    return number

def kill(pid):
    os.killpg(pid, signal.SIGKILL)

import threading
threading.Timer(1.0, kill, (int(sys.argv[1]),)).start()
print(run_tasks(sys.argv[2], None, outlive, [(n,) for n in range(30)]))
"""


def test_tasks_of_a_killed_worker_go_to_the_other(cluster: Cluster, run: Path) -> None:
    pid = cluster.processes["worker1"].pid
    done = subprocess.run(
        [sys.executable, "-c", KILLING, str(pid), f"dask:{cluster.file}"],
        cwd=run.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.strip() == str(list(range(30))), done.stderr
    cluster.processes["worker1"].wait(60)


INTERRUPTED = """
import sys, time
from pathlib import Path
from rankscope.engine.executors import run_tasks

def note(folder, number):
    (Path(folder) / str(number)).touch()
    time.sleep(0.5)

try:
    run_tasks(sys.argv[2], None, note, [(sys.argv[1], n) for n in range(200)])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_cancels_the_tasks_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(done), f"dask:{cluster.file}"], stdout=subprocess.PIPE, text=True
    )
    while not any(done.iterdir()):
        assert program.poll() is None
        time.sleep(0.1)
    program.send_signal(signal.SIGINT)
    out, _ = program.communicate(timeout=120)
    assert out == "interrupted\n"
    assert program.returncode == 0
    assert len(list(done.iterdir())) < 200
    left = f"""
from distributed import Client
client = Client(scheduler_file={str(cluster.file)!r})
print(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
"""
    assert in_a_program(tmp_path, left) == "0\n"


def test_a_cluster_on_this_machine_is_started_if_asked_for(run: Path) -> None:
    pytest.importorskip("distributed", reason="the package distributed is not installed")
    code = PROGRAM.format(executor="dask")
    done = subprocess.run(
        [sys.executable, "-c", f"if __name__ == '__main__':\n    exec({code!r})"],
        cwd=run.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "starting a Dask cluster on this machine" in done.stderr
    assert json.loads(done.stdout)[0]


def test_workers_with_other_versions_are_refused() -> None:
    from rankscope.engine.executors.dask import _check_versions

    ours = remote.versions()
    _check_versions({"tcp://a": ours}, "tcp://b")
    with pytest.raises(
        ConfigError, match=r"worker tcp://a of tcp://b has other versions: polars 0\.1 \(here"
    ) as caught:
        _check_versions({"tcp://a": {**ours, "polars": "0.1"}}, "tcp://b")
    assert "same environment" in str(caught.value.hint)


def test_a_scheduler_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the package distributed is not installed")
    with pytest.raises(ConfigError, match="no Dask scheduler file"):
        make_executor(f"dask:{tmp_path}/none.json")


@pytest.mark.parametrize("library", MPI)
def test_the_processes_of_an_mpi_job(run: Path, library: str) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    command = MPI[library]
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    analyze = [sys.executable, "-m", "rankscope", "analyze", "stragglers", "run", "--format", "json"]
    done = subprocess.run(
        [*command, "-n", "3", *analyze, "--executor", "mpi"],
        cwd=run.parent, capture_output=True, text=True, timeout=300,
        env={**os.environ, **(mpich(run.parent / "lib") if library == "mpich" else {"MPI4PY_MPIABI": library})},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shutil.rmtree(os.environ["RANKSCOPE_CACHE"])
    serial = subprocess.run([*analyze, "--executor", "serial"], cwd=run.parent, capture_output=True, text=True)
    assert done.stdout == serial.stdout


def test_the_library_of_another_mpi_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    monkeypatch.setenv("MPI4PY_MPIABI", "none-of-them")
    done = subprocess.run(
        [sys.executable, "-c", "from rankscope.engine.executors import check_kind; check_kind('mpi')"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "mpi4py cannot load an MPI library" in done.stderr
    assert "MPI4PY_MPIABI=openmpi" in done.stderr


def test_one_process_alone_is_no_mpi_job() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    done = subprocess.run(
        [sys.executable, "-c", "from rankscope.engine.executors import check_kind; check_kind('mpi')"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "needs two processes or more" in done.stderr or "cannot load an MPI library" in done.stderr


def test_tasks_get_the_settings_of_their_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / "there"))
    assert remote.run_remotely({"RANKSCOPE_CACHE": str(tmp_path / "here")}, os.environ.get, "RANKSCOPE_CACHE") == str(
        tmp_path / "here"
    )


def test_a_relative_path_means_the_same_to_a_worker_elsewhere(cluster: Cluster, run: Path) -> None:
    code = """
import os, sys, rankscope
from rankscope.engine.executors import run_tasks
assert run_tasks(sys.argv[1], None, os.getcwd, [()]) != [os.getcwd()]
print(len(rankscope.open("run", executor=sys.argv[1]).load().ranks))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"dask:{cluster.file}"],
        cwd=run.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == "6\n", done.stderr
