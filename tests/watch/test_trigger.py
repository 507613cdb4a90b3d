"""`rankscope trigger` where no job answers."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rankscope.cli import make_app
from rankscope.errors import ConfigError

from .jobs import SimulatedJob


def test_ranks_that_the_job_does_not_have_are_an_error(tmp_path):
    SimulatedJob(ranks=2).write(tmp_path)
    with pytest.raises(ConfigError, match="the job has no rank 5: its ranks are 0-1"):
        CliRunner().invoke(make_app(["trigger"]), ["trigger", str(tmp_path), "--ranks", "5"], catch_exceptions=False)
    assert not (tmp_path / "watch" / "requests").exists()
