"""Every way a training script can end, as two ranks with DDP: what was recorded is written, the losses and the exit
status are those of the script. The table in docs/capture.md lists these ways."""

from __future__ import annotations

import signal
import sys

import pytest

from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata

from .conftest import read_trace, steps_in, traces
from .test_never_harms import hidden
from .two_ranks import TRAIN, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="signals and forks of Linux")]

OPTIONS = {"RANKSCOPE_WAIT": "1", "RANKSCOPE_WARMUP": "1", "RANKSCOPE_ACTIVE": "4"}
DROP = "del model; gc.collect()"
KILL = "os.kill(os.getpid(), signal.{}); time.sleep(60)"
LEFT = "threading.Thread(target=lambda: [(time.sleep(0.01), torch.ones(4) + 1) for _ in range(30)]).start()"
# An operator of a daemon thread that is running when the interpreter ends aborts any script.
DAEMON = """
lock, ended = threading.Lock(), []
def work():
    while True:
        time.sleep(0.01)
        with lock: ended or torch.ones(4) + 1
threading.Thread(target=work, daemon=True).start()
train(6)
with lock: ended.append(True)
"""
FORK = """
child = os.fork()
if not child:
    torch.ones(3) + 1
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
"""
CHILD = """
import multiprocessing
def other():
    weight = torch.nn.Linear(2, 2)
    stepped = torch.optim.SGD(weight.parameters(), 0.1)
    for _ in range(9): stepped.step()
process = multiprocessing.get_context("fork").Process(target=other)
process.start(); process.join()
assert process.exitcode == 0
"""
# Before the script's own, which were registered earlier, and after its later ones.
ORDER = "atexit.register(dist.destroy_process_group); atexit.register(print, 'late', file=sys.stderr)"
IN_A_THREAD = "thread = threading.Thread(target=train, args=(6,)); thread.start()"

# What ends a process at once must leave the writer's thread time for the manifest, on a slow machine too.
WRITTEN = "\nwhile not os.path.exists(f'run/ranks/rank{rank}.json'): time.sleep(0.01)\n"

OPEN, WHOLE = "3_5", "3_6"
ENDINGS = {
    # What the script does, its exit status, the recorded steps.
    "normal return": (f"train(6); {DROP}", 0, OPEN),
    "process group destroyed first": (f"train(6); {DROP}; dist.destroy_process_group()", 0, OPEN),
    "process group destroyed after the window": (f"train(8); {DROP}; dist.destroy_process_group()", 0, WHOLE),
    "sys.exit": (f"train(6); {DROP}; sys.exit(7)", 7, OPEN),
    "exception": (f"train(6); {DROP}; raise ValueError('theirs')", 1, OPEN),
    "os._exit": (f"train(6){WRITTEN}os._exit(9)", 9, None),
    "SIGTERM": ("train(6); " + KILL.format("SIGTERM"), -signal.SIGTERM, OPEN),
    "SIGHUP": ("train(6); " + KILL.format("SIGHUP"), -signal.SIGHUP, OPEN),
    "SIGUSR1": ("train(6); " + KILL.format("SIGUSR1"), -signal.SIGUSR1, OPEN),
    "SIGALRM": ("train(6); signal.alarm(1); time.sleep(60)", -signal.SIGALRM, OPEN),
    "SIGINT": ("train(6); " + KILL.format("SIGINT"), -signal.SIGINT, OPEN),
    "SIGKILL": (f"train(6){WRITTEN}" + KILL.format("SIGKILL"), -signal.SIGKILL, None),
    "daemon thread left": (f"{DAEMON}{DROP}", 0, OPEN),
    "other thread left": (f"{LEFT}; train(6); {DROP}", 0, OPEN),
    "training in a thread": (f"{IN_A_THREAD}; thread.join(); {DROP}", 0, OPEN),
    "fork": (f"train(6)\n{FORK}\n{DROP}", 0, OPEN),
    "exec": (f"train(6){WRITTEN}os.execv(sys.executable, [sys.executable, '-Sc', 'raise SystemExit(4)'])", 4, None),
    "multiprocessing child that trains": (f"train(6)\n{CHILD}\n{DROP}", 0, OPEN),
    "order of atexit": (f"train(6); {ORDER}; {DROP}", 0, OPEN),
    "in the warm-up": (f"train(2); {DROP}", 0, None),
}

STATES = {
    "exception": ("interrupted", "ValueError"),
    **dict.fromkeys(("os._exit", "exec", "SIGKILL"), ("running", None)),
    **{name: ("interrupted", name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGALRM", "SIGINT")},
}


@pytest.fixture(scope="session")
def plain_losses(tmp_path_factory):
    """Of both ranks, without capture."""
    ended = run(TRAIN.format(before="", after=f"train(8); {DROP}"), tmp_path_factory.mktemp("plain"), profiled=False)
    assert [each.code for each in ended] == [0, 0], ended
    return [each.losses for each in ended]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_recorded_is_written_however_the_job_ends(tmp_path, plain_losses, ending):
    script, status, steps = ENDINGS[ending]
    ended = run(
        TRAIN.format(before="atexit.register(print, 'early', file=sys.stderr)", after=script), tmp_path, **OPTIONS
    )
    for rank, (each, plain) in enumerate(zip(ended, plain_losses, strict=True)):
        assert each.code == status, each.errors
        assert each.losses == plain[: len(each.losses)]
        assert len(each.losses) == 2 if ending == "in the warm-up" else len(each.losses) >= 6
        manifest = read_rank_manifest(tmp_path / "run" / "ranks" / f"rank{rank}.json")
        assert not manifest.failed, manifest.failed
        assert (manifest.state, manifest.ended_by) == STATES.get(ending, ("finished", None))
    wanted = [] if steps is None else [f"rank{rank}_iter{steps}.trace.json.gz" for rank in range(2)]
    assert traces(tmp_path / "run") == wanted, [each.errors for each in ended]
    assert not hidden(tmp_path / "run")
    for name in wanted:
        trace = read_trace(tmp_path / "run" / name)
        assert steps_in(trace) == list(range(3, int(steps[2:]) + 1))
        groups = TraceMetadata.from_json(trace[METADATA_KEY]).process_groups
        assert [group.ranks for group in groups] == [(0, 1)]
