"""What a process looks like from outside when it ends in an unusual way, and what capture loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import clean_environ, read_trace, steps_in, traces

LOOP = """
import sys, torch, rankscope
prof = rankscope.Profiler("run", wait=2, warmup=1, active=3)
prof.start()
for i in range({steps}):
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    prof.step()
{end}
"""


def run(code, cwd):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=clean_environ(), capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("steps", "end", "code", "names"),
    [
        (5, "sys.exit(7)", 7, ["rank0_iter3_4.trace.json.gz"]),
        pytest.param(5, "raise ValueError('theirs')", 1, ["rank0_iter3_4.trace.json.gz"], marks=pytest.mark.slow),
        pytest.param(2, "", 0, [], marks=pytest.mark.slow),  # in the warm-up
    ],
)
def test_exit_without_stop(tmp_path, steps, end, code, names):
    done = run(LOOP.format(steps=steps, end=end), tmp_path)
    assert done.returncode == code, done.stderr
    assert traces(tmp_path / "run") == names
    for name in names:
        assert steps_in(read_trace(tmp_path / "run" / name)) == [3, 4]
    if code == 1:
        assert "ValueError: theirs" in done.stderr
    assert ("no trace was written" in done.stderr) == (names == [])


def test_capture_needs_only_torch_and_the_standard_library(tmp_path):
    code = '''
import sys
BLOCKED = {"numpy", "polars", "msgspec", "rich", "typer", "isal", "zstandard", "fsspec", "starlette", "uvicorn"}
class Without:
    """A finder that does not find what is blocked, as where it is not installed."""
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import warnings
warnings.filterwarnings("ignore", message=".*[Nn]um[Pp]y.*")  # torch's own, where numpy is missing
from rankscope import Profiler
import torch
with Profiler("run", wait=1, warmup=1, active=1, record_shapes=True, with_stack=True) as prof:
    for i in range(4):
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
        prof.step()
loaded = sorted(BLOCKED & {name.partition(".")[0] for name in sys.modules})
assert not loaded, loaded
others = sorted(n for n in sys.modules if n.startswith("rankscope."))
assert all(n.split(".")[1] in ("capture", "rundir", "errors") for n in others), others
'''
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CaptureWarning" not in done.stderr, done.stderr
    assert traces(tmp_path / "run") == ["rank0_iter2_2.trace.json.gz"]


def test_the_import_alone_loads_no_analysis(tmp_path):
    code = (
        "import sys; from rankscope import Profiler\n"
        "bad = {'polars', 'msgspec', 'rich', 'typer'} & {n.partition('.')[0] for n in sys.modules}\n"
        "assert not bad, bad"
    )
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
