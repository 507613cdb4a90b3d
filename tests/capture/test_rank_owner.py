"""A rank is the first of its processes that is profiled; those that it starts stand aside."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.capture import rank_owner

from .conftest import clean_environ, said, traces
from .test_auto_profiler import run

# A package of its folder alone: the real one imports torch, which takes most of the time of such a short process.
CLAIM = (
    "import sys, types; package = types.ModuleType('rankscope.capture'); "
    f"package.__path__ = [{str(Path(rank_owner.__file__).parent)!r}]; "
    "sys.modules.setdefault('rankscope.capture', package); "
    "from rankscope.capture import rank_owner; print(rank_owner.claim({!r}))"
)
RANK = """
import multiprocessing, subprocess, sys, torch
def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        optimizer.step()
    return 7
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): return train()
if __name__ == "__main__" and sys.argv[1:]:
    train()
elif __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as early:
        assert list(torch.utils.data.DataLoader(Data(), num_workers=1)) == [7]
        train()
        assert early.apply(train) == 7
    subprocess.run(["sh", "-c", f"{sys.executable} job.py helper; exit $?"], check=True)
    own = "import rankscope\\nwith rankscope.Profiler() as p:\\n    for _ in range(8): p.step()"
    subprocess.run([sys.executable, "-c", own], check=True)
"""
"""A worker that trains before its rank does, a process forked before and used later, one behind a shell, and one with
a profiler of its own."""


@pytest.fixture(autouse=True)
def not_an_owner_afterwards():
    yield
    rank_owner.release()


def claimed_by(command: list[str], save_dir: str | None = None) -> str:
    code = CLAIM.format(save_dir)
    words = [word.replace("CLAIM", code) for word in command]
    done = subprocess.run(words, env=clean_environ(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_processes_below_the_owner_find_it():
    assert claimed_by([sys.executable, "-c", "CLAIM"]) == "None"
    assert rank_owner.claim(None) is None
    assert claimed_by([sys.executable, "-c", "CLAIM"]) == str(os.getpid())
    behind_a_shell = f"{sys.executable} -c {shlex.quote(CLAIM.format(None))}; exit $?"
    assert claimed_by(["sh", "-c", behind_a_shell]) == str(os.getpid())
    assert claimed_by([sys.executable, "-c", "CLAIM"], "elsewhere") == "None"
    rank_owner.release()
    assert claimed_by([sys.executable, "-c", "CLAIM"]) == "None"


def test_a_rank_may_start_the_other_ranks_of_its_job(monkeypatch):
    """As Lightning does; a group of helpers of its own has another address, or another size."""
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert rank_owner.claim(None, 0, 4) is None
    asked = {(1, 4): "None", (0, 4): str(os.getpid()), (0, 1): str(os.getpid()), (1, 2): str(os.getpid())}
    for (rank, world_size), owner in asked.items():
        code = CLAIM.format(None).replace("claim(None)", f"claim(None, {rank}, {world_size})")
        for port in ("29500", "29501"):
            environ = clean_environ() | {"MASTER_PORT": port}
            done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
            assert done.stdout.strip() == (owner if port == "29500" else str(os.getpid())), (rank, world_size, port)


def test_the_owner_stays_the_owner_as_another_image():
    code = CLAIM.format(None)
    again = f"import os, sys; {code}; os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    done = subprocess.run([sys.executable, "-uc", again], env=clean_environ(), capture_output=True, text=True)
    assert done.stdout.split() == ["None", "None"], done.stderr


def test_a_dead_owner_owns_nothing(tmp_path):
    """A process that a restart has started is not below the one that died; one that outlived it owns the rank."""
    code = CLAIM.format(None)
    (tmp_path / "child.py").write_text(f"import os, sys\nsys.stdin.read()\n{code}\n")
    parent = (
        f"import os, subprocess, sys; {code}; "
        "subprocess.Popen([sys.executable, 'child.py'], stdin=sys.stdin); os._exit(0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-uc", parent],
        cwd=tmp_path,
        env=clean_environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.wait(60) == 0
    output, _errors = process.communicate(timeout=60)
    assert output.split() == ["None", "None"]


@pytest.mark.slow
def test_helpers_of_a_rank_write_nothing(tmp_path):
    (tmp_path / "job.py").write_text(RANK)
    done = run("job.py", tmp_path, arguments=(), RANK="1", WORLD_SIZE="2", RANKSCOPE_RUN_ID="one")
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path / "run") == ["rank1_iter3_4.trace.json.gz"], done.stderr
    assert [path.name for path in (tmp_path / "run" / "ranks").iterdir()] == ["rank1.json"]
    assert said(done.stderr).count("is not profiled") == 4, done.stderr
