"""The torchrun command: its options go through, and it is never nested."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from rankscope.errors import LaunchError
from rankscope.jobs import torchrun
from rankscope.jobs.exec import leading_options


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_the_command(script, monkeypatch):
    monkeypatch.setattr(torchrun, "_workers", lambda: "gpu")
    base = [sys.executable, "-m", "rankscope.jobs.torchrun"]
    assert torchrun.command([], [script, "-x"], {}) == [
        *base,
        "--standalone",
        "--nproc_per_node=gpu",
        "--",
        script,
        "-x",
    ]
    given = ["--nproc_per_node=3"]
    assert torchrun.command(given, [script], {}) == [*base, "--standalone", *given, "--", script]
    # Who brings a rendezvous, or sets torchrun's own variables, keeps them.
    for option in ("--nnodes=2", "--rdzv-endpoint=h:1", "--rdzv_endpoint=h:1", "--master-port=1", "--standalone"):
        added = torchrun.command([option], [script], {})
        assert added.count("--standalone") == (option == "--standalone")
    assert "--standalone" not in torchrun.command([], [script], {"PET_NNODES": "2"})
    assert not [o for o in torchrun.command([], [script], {"PET_NPROC_PER_NODE": "2"}) if "nproc" in o]


@pytest.mark.parametrize(
    ("line", "environ", "several"),
    [
        (["--nnodes=2", "t.py"], {}, True),
        (["--nnodes", "1:4", "t.py"], {}, True),
        (["--nnodes", "1", "t.py"], {"PET_NNODES": "2"}, False),
        (["t.py"], {"PET_NNODES": "2"}, True),
        (["t.py"], {}, False),
        (["--nnodes"], {}, False),
    ],
)
def test_on_several_nodes_the_ranks_agree_on_the_run_id(line, environ, several):
    assert torchrun.has_more_nodes(line, environ) == several


@pytest.mark.parametrize(
    ("options", "environ", "separate"),
    [
        (["--max-restarts=1"], {}, True),
        (["--max_restarts", "3"], {}, True),
        (["--max-restarts", "0"], {"PET_MAX_RESTARTS": "2"}, False),
        ([], {"PET_MAX_RESTARTS": "2"}, True),
        ([], {}, False),
        (["--max-restarts"], {}, False),
    ],
)
def test_attempts_have_stores_of_their_own(options, environ, separate):
    wanted = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if separate else {}
    assert torchrun.store_settings(options, environ) == wanted


def test_every_option_of_the_installed_torchrun_goes_through(script):
    """Compared with torchrun's own parser, which is asked in another process, as it imports torch."""
    ask = "from torch.distributed.run import get_args_parser as p\nfor a in p()._actions:"
    ask += "\n  if a.option_strings: print(int(a.nargs == 0), *a.option_strings)"
    printed = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    actions = [line.split() for line in printed.splitlines()]
    assert len(actions) > 15
    known = torchrun.installed_options()
    assert known.names == {name for _, *names in actions for name in names}
    assert known.flags == {name for flag, *names in actions if flag == "1" for name in names}
    for flag, *names in actions:
        for name in names:
            given = [name] if flag == "1" else [name, "1"]
            assert leading_options([*given, script, "--x"], known.flags) == ([tuple(given)], [script, "--x"])
            assert torchrun.checked(given, known) == given
            assert torchrun.checked([f"{name}=1"], known) == [f"{name}=1"]


def test_options_that_are_shortened(script):
    known = torchrun.installed_options()
    assert torchrun.checked(["--nproc", "2", "--rdzv-b=c10d", "-t3"], known) == [
        *("--nproc-per-node", "2"),
        "--rdzv-backend=c10d",
        "-t3",
    ]
    # What it means is found before it is asked whether it was given.
    assert "--nproc_per_node=1" not in torchrun.command(["--nproc", "2"], [script], {})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--activ", "2"], "did you mean --active?"),
        (["--activ=2"], "did you mean --active?"),
        (["--record-shape", "train.py"], "did you mean --record-shapes"),
        (["--nproc-pernode", "2"], "did you mean --nproc-per-node"),
        (["--nproc_pernode", "2"], "did you mean --nproc-per-node"),
        (["--rdzv", "2"], "did you mean --rdzv-backend or --rdzv-conf"),
        (["--xyzzy"], "torchrun --help"),
        (["-n", "2"], "torchrun --help"),
        (["--nnodes", "1", "--wiat", "2"], "did you mean --wait"),
    ],
)
def test_an_option_that_nobody_has(script, options, named):
    name = next(each for each in reversed(options) if each.startswith("-")).partition("=")[0]
    with pytest.raises(LaunchError, match=re.escape(f"{name} is not an option of torchrun")) as error:
        torchrun.command(options, [script], {})
    assert named in str(error.value)


def test_without_torch_everything_goes_through(monkeypatch, script):
    monkeypatch.setattr(torchrun.importlib.util, "find_spec", lambda name: None)
    known = torchrun.installed_options()
    assert (known.names, known.flags) == (frozenset(), torchrun.FLAGS)
    assert torchrun.checked(["--any", "1"], known) == ["--any", "1"]
    assert torchrun.command(["--any", "1"], [script], {})[-4:] == ["--any", "1", "--", script]


def test_no_script(script):
    with pytest.raises(LaunchError, match="no script to run"):
        torchrun.command(["--nproc-per-node=2"], [], {})
    with pytest.raises(LaunchError, match="no such script"):
        torchrun.command([], [script + "x"], {})
    assert torchrun.command(["-m"], ["any.module"], {})[-3:] == ["-m", "--", "any.module"]


def test_python_before_the_script_is_told_of(script):
    with pytest.raises(LaunchError, match="no such script") as raised:
        torchrun.command([], ["python", script], {})
    assert "leave 'python' out" in str(raised.value.hint)


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
