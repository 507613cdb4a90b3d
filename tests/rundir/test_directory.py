"""What a run directory can be named by."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.errors import ConfigError
from rankscope.rundir.directory import directory_of


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("runs/night", "runs/night"),
        (Path("/scratch/run"), "/scratch/run"),
        ("file:///scratch/run", "/scratch/run"),
        ("FILE://localhost/scratch/my%20run", "/scratch/my run"),
        ("file:/scratch/run", "/scratch/run"),
        ("file:///scratch/run#2?b", "/scratch/run#2?b"),
        ("file:///scratch//run", "/scratch//run"),
        ("~/run", "~/run"),
        ("C:\\runs", "C:\\runs"),
        ("C:/runs", "C:/runs"),
        ("a:b", "a:b"),
        ("lab:/run", "lab:/run"),
    ],
)
def test_paths_and_file_urls(named: str | Path, path: str) -> None:
    assert directory_of(named) == path


@pytest.mark.parametrize(
    "named", ["s3://bucket/run", "gs://b", "https://host/x", "file://other/run", "file:///", "file:///a%00b"]
)
def test_what_is_no_directory_is_refused(named: str) -> None:
    with pytest.raises(ConfigError, match="not a directory that a job can write to") as error:
        directory_of(named)
    assert error.value.hint
