"""The torchrun command: its options go through, and it is never nested."""

from __future__ import annotations

import sys

import pytest

from rankscope.errors import LaunchError
from rankscope.launch import torchrun


@pytest.mark.parametrize(
    ("arguments", "options", "script"),
    [
        (["train.py"], [], ["train.py"]),
        (["--nproc-per-node", "2", "train.py", "--lr", "1"], ["--nproc-per-node", "2"], ["train.py", "--lr", "1"]),
        (["--nproc_per_node=2", "--standalone", "t.py"], ["--nproc_per_node=2", "--standalone"], ["t.py"]),
        (["-m", "pkg.train", "--help"], ["-m"], ["pkg.train", "--help"]),
        (["-t", "3", "-r", "0:1", "t.py", "-x"], ["-t", "3", "-r", "0:1"], ["t.py", "-x"]),
        (["--nnodes", "2", "--", "t.py", "--", "x"], ["--nnodes", "2"], ["t.py", "--", "x"]),
        ([], [], []),
    ],
)
def test_split(arguments, options, script):
    assert torchrun.split(arguments) == (options, script)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_the_command(script, monkeypatch):
    monkeypatch.setattr(torchrun, "_workers", lambda: "gpu")
    base = [sys.executable, "-m", "rankscope.launch.elastic"]
    assert torchrun.command([], [script, "-x"], {}) == [*base, "--standalone", "--nproc-per-node=gpu", script, "-x"]
    given = ["--nproc_per_node=3"]
    assert torchrun.command(given, [script], {}) == [*base, "--standalone", *given, script]
    # Who brings a rendezvous, or sets torchrun's own variables, keeps them.
    for option in ("--nnodes=2", "--rdzv-endpoint=h:1", "--rdzv_endpoint=h:1", "--master-port=1", "--standalone"):
        added = torchrun.command([option], [script], {})
        assert added.count("--standalone") == (option == "--standalone")
    assert "--standalone" not in torchrun.command([], [script], {"PET_NNODES": "2"})
    assert not [o for o in torchrun.command([], [script], {"PET_NPROC_PER_NODE": "2"}) if "nproc" in o]


def test_no_script(script):
    with pytest.raises(LaunchError, match="no script to run"):
        torchrun.command(["--nproc-per-node=2"], [], {})
    with pytest.raises(LaunchError, match="no such script"):
        torchrun.command([], [script + "x"], {})
    assert torchrun.command(["-m"], ["any.module"], {})[-2:] == ["-m", "any.module"]


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "0", "PMI_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"},
    ],
)
def test_it_never_nests(environ):
    with pytest.raises(LaunchError, match="already rank") as error:
        torchrun.refuse_to_nest(environ)
    assert "RANKSCOPE_RUN_DIR" in str(error.value)


@pytest.mark.parametrize(
    "environ",
    [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}],
)
def test_a_batch_script_may_launch(environ):
    torchrun.refuse_to_nest(environ)
