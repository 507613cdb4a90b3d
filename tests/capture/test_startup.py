"""The hang watch before the first step: when it begins, for how long, and that it harms nothing."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from rankscope.capture import startup
from rankscope.capture.hang import HangWatch
from rankscope.capture.startup import StartupWatch, watch_process_group

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "job"}


class Begun:
    """Notes when it would begin."""

    def __init__(self):
        self.calls = []

    def begin(self, group_timeout_s, *, connected):
        self.calls.append((group_timeout_s, connected))


@pytest.fixture
def c10d(monkeypatch):
    """Torch's module with a function that connects to nobody."""
    module = SimpleNamespace(
        init_process_group=lambda *args, **options: (args, options),
        default_pg_timeout=timedelta(minutes=30),
        default_pg_nccl_timeout=timedelta(minutes=10),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
    return module


@pytest.mark.parametrize(
    ("args", "options", "timeout_s"),
    [
        ((), {}, 600),  # NCCL, if there is a GPU
        (("nccl",), {}, 600),
        (("cpu:gloo,cuda:nccl",), {}, 600),
        (("gloo",), {}, 1800),
        ((), {"backend": "gloo", "timeout": timedelta(seconds=7)}, 7),
        (("gloo", "env://", timedelta(seconds=8)), {}, 8),
        (("gloo",), {"timeout": "not a time"}, None),
    ],
)
def test_the_limit_is_the_process_groups(c10d, args, options, timeout_s):
    begun = Begun()
    watch_process_group(lambda: begun)
    assert c10d.init_process_group(*args, **options) == (args, options)
    assert begun.calls == [(timeout_s, False), (timeout_s, True)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rank": 1, "world_size": 2}, [False, True]),
        ({"rank": 0, "world_size": 1, "store": object()}, [True]),  # of a helper that has a rank's variables
        ({"rank": 0, "world_size": 2}, [True]),
    ],
)
def test_before_the_group_is_there_it_begins_for_the_launchers_place_alone(c10d, monkeypatch, options, expected):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    begun = Begun()
    watch_process_group(lambda: begun)
    c10d.init_process_group("gloo", **options)
    assert [connected for _, connected in begun.calls] == expected


def test_torchs_own_modules_call_it_too():
    code = (
        "import torch, torch.distributed as dist\n"
        "from rankscope.capture.startup import watch_process_group\n"
        "watch_process_group(lambda: None)\n"
        "assert hasattr(dist.init_process_group, '__wrapped__')\n"
        "assert dist.device_mesh.init_process_group is dist.init_process_group\n"
        "assert dist.distributed_c10d.init_process_group is dist.init_process_group\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_init_process_group_is_the_jobs_whatever_the_watch_does(c10d):
    def fails():
        raise RuntimeError("theirs")

    watch_process_group(fails)
    with pytest.warns(match="hangs before the first step are not noticed: RuntimeError: theirs"):
        assert c10d.init_process_group("gloo") == (("gloo",), {})


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The hang watches that were started; their threads do not run."""
    found = []
    monkeypatch.setattr(HangWatch, "start", lambda self: found.append(self) or self)
    monkeypatch.setenv("RANKSCOPE_RUN_DIR", str(tmp_path))
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    return found


def test_it_begins_once_and_before_the_group_is_there(started, tmp_path):
    watch = StartupWatch()
    watch.begin(600.0, connected=False)
    watch.begin(600.0, connected=True)
    (hangs,) = started
    assert (hangs.directory, hangs.limit_s(), hangs.exit_status) == (tmp_path, 540.0, None)
    assert (hangs.run_id, hangs.ranks) == ("job", "all")


def test_a_long_timeout_does_not_delay_it(started):
    StartupWatch().begin(timedelta(days=1).total_seconds(), connected=False)
    assert started[0].limit_s() == 1800.0


@pytest.mark.parametrize(
    "variables",
    [
        {"RANKSCOPE_RANKS": "0"},  # another rank is selected
        {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"},
        {"RANKSCOPE_RUN_DIR": ""},  # the ranks agree on one through their process group
        {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": ""},  # torch.multiprocessing.spawn
    ],
)
def test_it_does_not_begin_yet(started, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    StartupWatch().begin(600.0, connected=False)
    assert not started


def test_a_process_that_a_rank_started_is_not_watched(started, monkeypatch):
    monkeypatch.setattr(startup.rank_owner, "owner_above", lambda *_: 1)
    StartupWatch().begin(600.0, connected=True)
    assert not started


def test_it_does_not_begin_again_after_its_end(started):
    watch = StartupWatch()
    watch.begin(600.0, connected=False)
    watch.end()
    watch.begin(600.0, connected=True)
    assert len(started) == 1
