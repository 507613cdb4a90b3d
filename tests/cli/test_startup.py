"""What a command line imports before it does its work: by modules, as times depend on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Optional, get_origin

import pytest
import typer
from tests.analyses.reference import write_reference

import rankscope
from rankscope.cli import make_app
from rankscope.cli.signature import _annotated

# At its first read of a trace, or at its end, the process prints what it has imported.
WATCHED = """
import atexit, os, sys
def show():
    print(*sys.modules, file=sys.stderr)
atexit.register(show)
def hook(event, values):
    if event == "open" and ".json" in str(values[0]) and "rank" in os.path.basename(str(values[0])):
        show()
        os._exit(3)
sys.addaudithook(hook)
from rankscope.cli import main
main()
"""


def imported(*arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, set(done.stderr.split("\n")[-2].split(" "))


def test_help_imports_no_subcommand():
    code, modules = imported("--help")
    assert (code, "typer" in modules) == (0, True)
    ours = {name for name in modules if name.startswith("rankscope.")}
    assert ours == {"rankscope.cli", "rankscope.errors"}
    assert not modules & {"polars", "numpy", "msgspec", "torch"}


def test_what_a_summary_imports_before_its_first_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANKSCOPE_CACHE", str(tmp_path / "cache"))
    code, modules = imported("summary", str(write_reference(tmp_path / "run")), "--executor", "serial")
    assert code == 3
    assert "polars" in modules
    assert not modules & {"torch", "matplotlib", "starlette", "uvicorn", "fsspec", "ssl", "urllib.request"}
    packages = {name.split(".")[1] for name in modules if name.startswith("rankscope.")}
    assert not packages & {"capture", "jobs", "measure", "simulate", "timeline", "web", "workloads"}


@pytest.mark.parametrize("script", ["", "raise SystemExit(3)"], ids=["no trace", "a failure"])
def test_the_launcher_of_a_job_does_not_import_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str):
    (tmp_path / "job.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    code, modules = imported("run", "--run-dir", "run", "job.py")
    assert code == (1 if script else 0)
    assert "rankscope.rundir.staging" in modules
    assert not modules & {"torch", "polars", "numpy"}


# Ctrl-C at the import of a module.
INTERRUPTED = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from rankscope.__main__ import start
start()
"""


def test_hardly_anything_is_imported_before_ctrl_c_is_handled():
    script = (
        "import sys; before = {*sys.modules, '__future__'}; import rankscope.__main__; print(*{*sys.modules} - before)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(rankscope.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert set(done.stdout.split()) == {"rankscope", "rankscope.__main__"}


@pytest.mark.parametrize(
    "module", ["typer", "rankscope.cli", "rankscope.cli.summary", "polars", "rankscope.engine.pipeline"]
)
def test_ctrl_c_during_imports_shows_no_traceback(tmp_path: Path, module: str):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "summary", str(tmp_path)],
        env={**os.environ, "INTERRUPT_AT": module},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("arguments", [["--help"], ["analyses"]])
def test_a_full_disk_behind_the_output_is_an_error_message(arguments: list[str]):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "rankscope", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the output could not be written: no space left on device\n"


def test_help_is_that_of_the_modules():
    named = {each.name: each.help for each in make_app([]).registered_commands}
    whole = make_app()
    commands = {each.name: each.callback.__doc__ for each in whole.registered_commands if each.callback}
    groups = {each.name: each.typer_instance.info.help for each in whole.registered_groups if each.typer_instance}
    assert named.keys() == commands.keys() | groups.keys()
    for name, text in (commands | groups).items():
        assert " ".join(str(named[name]).split()) == " ".join(str(text).split())


def test_an_optional_argument_keeps_its_annotation():
    # As Python 3.10 reads the hint of a parameter whose default is None.
    plain = Annotated[str | None, typer.Argument(metavar="[B]")]
    for hint in (plain, Optional[plain]):  # noqa: UP045
        assert get_origin(_annotated(hint)) is Annotated
    assert _annotated(str | None) == str | None


def test_the_subcommand_of_a_command_line_is_imported():
    command = next(each for each in make_app(["exec", "--help"]).registered_commands if each.name == "exec")
    assert command.cls is not None
    group = make_app(["measure", "x"]).registered_groups
    assert [each.name for each in group] == ["measure"]
    assert isinstance(group[0].typer_instance, typer.Typer)
