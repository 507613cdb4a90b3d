"""Which process is torchrun's agent, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankscope.rundir.processes import pid_namespace

RANK = "TORCHELASTIC_RUN_ID"
SAY = "from rankscope.rundir.processes import elastic_agent; print(elastic_agent())"
START = "import os, subprocess, sys; print(os.getpid(), flush=True); "
NESTED = START + "sys.exit(subprocess.call([sys.executable, '-c', {inner!r}], env={{**os.environ, **{more!r}}}))"

pytestmark = pytest.mark.skipif(not pid_namespace(), reason="processes are looked for in /proc")


def numbers(code, **more):
    """What a process and its children print, one number or None a line."""
    environ = {name: value for name, value in os.environ.items() if name != RANK}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**environ, **more}, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split()


def test_a_rank_is_started_by_its_agent():
    agent, found = numbers(NESTED.format(inner=SAY, more={RANK: "job"}))
    assert found == agent


def test_processes_between_a_rank_and_its_agent_do_not_count():
    # As `sh -c "numactl … python train.py"`: the shell has torchrun's variables, too.
    between = NESTED.format(inner=SAY, more={})
    agent, shell, found = numbers(NESTED.format(inner=between, more={RANK: "job"}))
    assert found == agent != shell


def test_without_torchrun_there_is_none():
    assert numbers(SAY) == ["None"]
    # What a process adds to its own environment says nothing about who has started it.
    assert numbers(f"import os; os.environ[{RANK!r}] = 'job'; {SAY}") == ["None"]
