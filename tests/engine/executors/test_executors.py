"""Where tasks run makes no difference to what they give; what dies takes nothing else along."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kineto import kernel, small_step, trace, write, write_ranks

from rankscope.engine.executors import Lazy, WorkerDiedError, make_executor, run_each, run_tasks
from rankscope.engine.pipeline import open_run
from rankscope.errors import ConfigError
from rankscope.results import Inputs

KINDS = ["serial", "processes"]


def double(number: int) -> int:
    return 2 * number


def fail_on(number: int, bad: int) -> int:
    if number == bad:
        raise ValueError(f"no {number}")
    return number


def die_on(number: int, bad: tuple[int, ...]) -> int:
    if number in bad:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


def threads(_: int) -> str:
    return os.environ.get("POLARS_MAX_THREADS", "")


def test_the_kinds() -> None:
    with pytest.raises(ConfigError, match="no executor 'dusk'") as refused:
        make_executor("dusk")
    assert "processes, serial" in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_outcomes_come_in_order_and_each_is_told(kind: str) -> None:
    results: list[object] = []
    assert run_tasks(kind, 2, double, [(n,) for n in range(20)], results.append) == list(range(0, 40, 2))
    assert sorted(results) == list(range(0, 40, 2))  # type: ignore[type-var]
    assert run_tasks(kind, 2, double, []) == []


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_are_made_as_workers_take_them(kind: str) -> None:
    made: list[int] = []
    ahead: list[int] = []

    def argument(index: int) -> tuple[int]:
        made.append(index)
        return (index,)

    outcomes: dict[int, object] = {}

    def arrived(index: int, outcome: int | BaseException) -> None:
        outcomes[index] = outcome
        ahead.append(len(made) - len(outcomes))

    run_each(kind, 2, double, Lazy(100, argument), arrived)
    assert outcomes == {n: 2 * n for n in range(100)}
    assert sorted(made) == list(range(100))
    assert max(ahead) < 20
    assert Lazy(3, argument)[1:] == [(1,), (2,)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_fails_is_its_outcome(kind: str) -> None:
    outcomes = run_tasks(kind, 2, fail_on, [(n, 3) for n in range(6)])
    assert isinstance(outcomes[3], ValueError)
    assert [outcome for outcome in outcomes if not isinstance(outcome, BaseException)] == [0, 1, 2, 4, 5]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("bad", [(0,), (5,), (3, 9), (11,)])
def test_a_worker_that_dies_costs_its_task_alone(bad: tuple[int, ...]) -> None:
    results: list[object] = []
    outcomes = run_tasks("processes", 2, die_on, [(n, bad) for n in range(12)], results.append)
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, WorkerDiedError) if number in bad else outcome == number
    assert len(results) == 12


def test_workers_take_one_thread_each() -> None:
    assert run_tasks("processes", 2, threads, [(0,)]) == ["1"]


SERVER = """
import json, sys
from multiprocessing import forkserver
{before}
from rankscope.engine.executors import Pool, run_tasks
pool = Pool("processes", 2)
if run_tasks("processes", 2, len, [("ab",), ("c",)], pool=pool) != [2, 1]:
    sys.exit("no outcomes")
import psutil
server = psutil.Process(forkserver._forkserver._forkserver_pid)
print(json.dumps([server.num_threads(), forkserver._forkserver._preload_modules]))
pool.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork server")
@pytest.mark.parametrize("own", [False, True])
def test_the_fork_server_has_one_thread_and_what_the_program_wants(own: bool) -> None:
    before = "forkserver.set_forkserver_preload(['colorsys'])" if own else ""
    ended = subprocess.run(
        [sys.executable, "-c", SERVER.format(before=before)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    threads, preloaded = json.loads(ended.stdout)
    # A fork after threads may hang: whatever is preloaded must start none.
    assert threads == 1
    assert preloaded == ["colorsys"] if own else {"__main__", "inspect", "zstandard"} <= set(preloaded)
    assert not {"numpy", "polars"} & set(preloaded)


def test_serial_and_processes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_ranks(tmp_path / "run", {rank: small_step(rank) for rank in range(5)})
    frames = {}
    for kind in KINDS:
        monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / kind))
        run = open_run(folder, executor=kind, workers=2)
        results = run.analyze("device_time", "step_time", "kernels", "collectives")
        frames[kind] = {name: result.frame for name, result in results.items()}
        frames[kind]["tables"] = run.loaded.ranks[4][0].load("device_events")
        assert run.ranks == [0, 1, 2, 3, 4]
    for name, frame in frames["serial"].items():
        assert frame.equals(frames["processes"][name]), name


SCRIPT = """
import rankscope
run = rankscope.open({folder!r}, executor="processes", workers=2)
print(run.device_time().height)
"""


@pytest.mark.parametrize("how", ["file", "stdin", "module"])
def test_a_script_without_a_main_guard(tmp_path: Path, how: str) -> None:
    folder = write_ranks(tmp_path / "run", {0: small_step(), 1: small_step()})
    script = tmp_path / "look.py"
    script.write_text(SCRIPT.format(folder=str(folder)))
    command = {"file": [str(script)], "stdin": ["-"], "module": ["-m", "look"]}[how]
    ended = subprocess.run(
        [sys.executable, *command],
        input=script.read_text() if how == "stdin" else "",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ended.stdout, ended.returncode) == ("2\n", 0), ended.stderr


def test_a_worker_killed_while_it_reads_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_ranks(tmp_path / "run", {rank: small_step() for rank in range(4)})
    monkeypatch.setattr("rankscope.engine.pipeline.load.ingest_trace", killed_by_rank_2)
    run = open_run(folder, executor="processes", workers=2).load()
    assert run.ranks == [0, 1, 3]
    found = {finding.id: finding for finding in run.findings}
    assert found["trace-unreadable"].severity == "error"
    assert "rank2.json" in found["trace-unreadable"].title
    assert "died" in found["trace-unreadable"].title
    assert found["missing-ranks"].ranks == (2,)


def killed_by_rank_2(path: str, *rest: object) -> object:
    if path.endswith("rank2.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    from rankscope.ingest.task import ingest_trace

    return ingest_trace(path)


def test_a_worker_killed_while_it_analyses_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_ranks(tmp_path / "run", {rank: small_step() for rank in range(4)})
    run = open_run(folder, executor="processes", workers=2).load()
    monkeypatch.setattr("rankscope.engine.pipeline.graph.analyze_rank", killed_by_rank_1)
    assert run.device_time()["rank"].to_list() == [0, 2, 3]
    (finding,) = [finding for finding in run.findings if finding.id == "rank-not-analyzed"]
    assert finding.ranks == (1,)


def killed_by_rank_1(wanted: Any, traces: Any, inputs: Inputs, *rest: Any) -> object:
    if inputs.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    from rankscope.engine.pipeline.tasks import analyze_rank

    return analyze_rank(wanted, traces, inputs, *rest)


INTERRUPTED = """
import sys, rankscope
try:
    rankscope.open(sys.argv[1], executor="processes", workers=2).load()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
print("read to the end")
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.parametrize(
    ("to", "sent"),
    [
        ("group", "SIGINT"),
        pytest.param("program", "SIGINT", marks=pytest.mark.slow),
        pytest.param("program", "SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_interrupted_without_orphans(tmp_path: Path, private_cache: Path, to: str, sent: str) -> None:
    # So much that it is still being read when the signal comes, however late that is.
    made = [kernel(f"kernel {number % 50}", number, 1, correlation=number) for number in range(150_000)]
    first = write(tmp_path / "run" / "rank0.json", trace(made))
    for rank in range(1, 6):
        shutil.copy(first, first.with_name(f"rank{rank}.json"))
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while len(children) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
        children = psutil.Process(program.pid).children(recursive=True)
    time.sleep(0.3)
    children = psutil.Process(program.pid).children(recursive=True) or children
    assert children
    number = getattr(signal, sent)
    os.killpg(program.pid, number) if to == "group" else program.send_signal(number)
    ended, errors = program.communicate(timeout=300)
    _, alive = psutil.wait_procs(children, timeout=300)
    for orphan in alive:
        orphan.kill()
    assert alive == []
    if sent == "SIGINT":
        assert (ended, program.returncode) == ("interrupted\n", 130), errors
        assert "Traceback" not in errors
    # What is in the cache is whole, and what was begun is gone.
    for folder in private_cache.glob("v*/??/*"):
        assert (folder / "info.json").exists()
    assert list(private_cache.rglob("*.tmp")) == []


def begin_and_stay(folder: str) -> None:
    begun = Path(folder) / f"begun-{os.getpid()}"
    try:
        begun.touch()
        time.sleep(600)
    finally:
        begun.unlink()


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_workers_that_are_ended_tidy_up(tmp_path: Path) -> None:
    executor = make_executor("processes", 2)
    futures = [executor.submit(begin_and_stay, str(tmp_path)) for _ in range(6)]
    deadline = time.monotonic() + 300
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(tmp_path.iterdir())) == 2
    executor.stop()  # type: ignore[attr-defined]
    executor.shutdown()
    # Neither what they had begun nor a task that waited for them.
    assert list(tmp_path.iterdir()) == []
    assert all(future.cancelled() or future.exception() for future in futures)


def command_line(process: psutil.Process) -> str:
    """A process's command line; nothing of one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_workers_stay_from_one_level_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(kind: str, workers: int | None = None) -> Executor:
        made.append(kind)
        return make_executor(kind, workers)

    monkeypatch.setattr("rankscope.engine.executors.make_executor", counted)
    folder = write_ranks(tmp_path / "run", {rank: small_step() for rank in range(3)})
    run = open_run(folder, executor="processes", workers=2)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    assert run.analyze("stragglers", "device_time")["stragglers"].frame.height >= 0
    assert made == ["processes"]
    # They end with the question: a notebook does not keep them for hours.
    left = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
    # Python's own two stay as long as this process, and are new where no test before this one has started them.
    of_python = ("forkserver", "resource_tracker")
    workers = [each for each in left if not any(name in command_line(each) for name in of_python)]
    _, alive = psutil.wait_procs(workers, timeout=120)
    assert alive == []
