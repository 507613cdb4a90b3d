"""What the experiments' tests share."""

from __future__ import annotations

import os
import re

import pytest

LAUNCHER = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|MASTER_\w+)$"
    r"|(TORCHELASTIC|SLURM|PMIX?|PALS|OMPI|MV2|MVP|FLUX|PBS|MPI|RANKSCOPE)_"
)


@pytest.fixture
def no_launcher(monkeypatch):
    """Jobs are started as from a plain shell, and say nothing of their recordings."""
    for name in list(os.environ):
        if LAUNCHER.match(name) and name != "RANKSCOPE_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
