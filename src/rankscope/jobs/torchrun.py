"""torchrun as ``rankscope run`` calls it: its command line, whose options go through untouched, and how it ends.

``python -m rankscope.jobs.torchrun [torchrun's arguments]`` is torchrun, except that a signal ends it as it ends other
programs (no traceback, exit code 128 + its number) and that of a failed worker it prints the table alone.

Nothing here imports torch: torchrun itself finds out how many accelerators there are, and the options that it has are
read from its source.

In: a command line. Out: torchrun's arguments, the script and its arguments.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rankscope.errors import LaunchError
from rankscope.jobs.exec import leading_options, profiled_environment, replace_process, take_options
from rankscope.rundir.config import OPTIONS
from rankscope.rundir.launcher import identify
from rankscope.rundir.versions import is_supported_torch

RUN_DIR_VARIABLE = "RANKSCOPE_RUN_DIR"
RUN_ID_VARIABLE = "RANKSCOPE_RUN_ID"

FLAGS = frozenset(
    (
        *("--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "-m", "--module", "-h", "--help"),
        *("--virtual-local-rank", "--virtual_local_rank"),
    )
)
"""torchrun's options that take no value, for a torch whose source cannot be read."""
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd")
_GRAPHICS_FILES = "/dev/dri"
_COUNT = "import torch; a = torch.cuda if torch.cuda.is_available() else getattr(torch, 'xpu', None); \
print(a.device_count() if a is not None and a.is_available() else 0)"
_RENDEZVOUS = ("nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "master-addr", "master-port", "node-rank")
_RENDEZVOUS_VARIABLES = ("PET_NNODES", "PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_MASTER_ADDR", "PET_NODE_RANK")


@dataclass(frozen=True)
class Options:
    """The options that a torchrun has."""

    names: frozenset[str] = frozenset()
    """All, in each spelling; empty if they are not known."""
    flags: frozenset[str] = FLAGS
    """Those that take no value."""


def installed_options() -> Options:
    """The options of the torchrun that is installed here: each version has others."""
    try:
        return _options_in(ast.parse(_torch_source("distributed", "run.py")))
    except (ValueError, SyntaxError):
        return Options()


def _torch_source(*path: str) -> str:
    """The source of a file of the torch that is installed here, which is not imported; empty if there is none."""
    try:
        torch = importlib.util.find_spec("torch")
        folders = list(torch.submodule_search_locations or ()) if torch is not None else []
        return Path(folders[0], *path).read_text(encoding="utf-8")
    except (OSError, ValueError, IndexError, ImportError):
        return ""


def _options_in(tree: ast.AST) -> Options:
    """What is added to the parser there."""
    names, flags = {"-h", "--help"}, {"-h", "--help"}
    for call in ast.walk(tree):
        if not (
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        ):
            continue
        written = {each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        written = {name for name in written if name.startswith("-")}
        names |= written
        action = next((each.value for each in call.keywords if each.arg == "action"), None)
        # torchrun's own action for a switch that a variable can set as well.
        switch = isinstance(action, ast.Name) and action.id == "check_env"
        if switch or (isinstance(action, ast.Constant) and str(action.value).startswith("store_")):
            flags |= written
    # The parser is written differently than in all versions so far.
    return Options(frozenset(names), frozenset(flags)) if len(names) > 10 else Options()


def checked(options: Sequence[str], known: Options) -> list[str]:
    """torchrun's options, with abbreviations written out.

    Args:
        options: each followed by its value.
        known: the options that torchrun has; with none, everything goes through.

    Raises:
        LaunchError: one that neither has.
    """
    if not known.names:
        return list(options)
    found: list[str] = []
    rest = list(options)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        full = _full(name, known.names)
        found.append(full + equals + value)
        if full not in known.flags and not equals and rest and not (len(name) > 2 and not name.startswith("--")):
            found.append(rest.pop(0))
    return found


def _full(name: str, names: frozenset[str]) -> str:
    """An option in full.

    Raises:
        LaunchError: there is none, or there are several.
    """
    if name in names or (not name.startswith("--") and name[:2] in names):
        return name  # -t3 is -t 3
    plain = name.replace("_", "-")
    meant = sorted({each for each in names if each.startswith(plain) and "_" not in each})
    if len(meant) == 1 and name.startswith("--"):
        return meant[0]
    every = sorted({*OPTIONS, *(each for each in names if "_" not in each)})
    near = meant or difflib.get_close_matches(plain, every, 2, 0.7)
    raise LaunchError(
        f"{name} is not an option of torchrun or of rankscope run",
        hint=f"did you mean {' or '.join(near[:4])}?" if near else "rankscope run --help and torchrun --help list them",
    )


def has_more_nodes(line: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a torchrun's command line or variables ask for more than one node: their ranks agree on the run's id."""
    return (_value("nnodes", line) or environ.get("PET_NNODES", "1")) not in ("1", "1:1")


def store_settings(options: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which ranks that torchrun starts again can connect to each other.

    Torch 2.13 keeps one store for all attempts (`DynamicRendezvousHandler`): ranks find the addresses of the attempt
    before in it, and most restarts of a Gloo job fail with "connection refused". With this variable of torch's, each
    attempt has a store of its own, at rank 0.

    Args:
        options: torchrun's, in full.
        environ: the environment, which may hold torchrun's ``PET_*`` settings.
    """
    given = _value("max-restarts", options) or environ.get("PET_MAX_RESTARTS", "0")
    return {} if given.strip() in ("", "0") else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def _value(name: str, line: Sequence[str]) -> str | None:
    """The value of an option in a command line that is written out; ``None`` if it is not given."""
    for word, following in zip(line, [*line[1:], ""]):  # noqa: B905  # for Python 3.8
        if _name(word) == name and word.startswith("-"):
            return word.partition("=")[2] if "=" in word else following
    return None


def command(options: Sequence[str], script: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The whole command line.

    Args:
        options: torchrun's options, as the user gave them.
        script: the script and its arguments.
        environ: the environment, which may hold torchrun's ``PET_*`` settings.

    Raises:
        LaunchError: no script, one that does not exist, or an option that torchrun lacks.
    """
    # Before the script is looked at: an option that torchrun lacks may have taken it for its value.
    options = checked(options, installed_options())
    if not script:
        raise LaunchError(
            "no script to run", hint="rankscope run [torchrun options] script.py [args], as with torchrun itself"
        )
    given = {_name(option) for option in options}
    if not given & {"m", "module", "no-python"} and not Path(script[0]).is_file():
        hint = "give the path of a Python file, or -m MODULE"
        if Path(script[0]).name.startswith("python") and len(script) > 1:
            hint = f"leave {script[0]!r} out, as with torchrun: rankscope run {script[1]}"
        raise LaunchError("no such script", path=script[0], hint=hint)
    added: list[str] = []
    elsewhere = given & {"standalone", *_RENDEZVOUS} or any(v in environ for v in _RENDEZVOUS_VARIABLES)
    if not elsewhere:
        # A rendezvous of its own, on a port that the system says is free: two jobs on one host do not meet.
        added.append("--standalone")
    if "nproc-per-node" not in given and "PET_NPROC_PER_NODE" not in environ:
        added.append(f"--nproc_per_node={_workers()}")  # an old torch has this spelling alone
    # Without the dashes argparse refuses an argument of the script that begins like several of torchrun's options.
    return [sys.executable, "-m", "rankscope.jobs.torchrun", *added, *options, "--", *script]


def is_supported_torch_installed() -> bool:
    """Whether capture works with the torch that is installed here, found out without importing it; true if that is not
    known."""
    version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", _torch_source("version.py"))
    return version is None or is_supported_torch(version[1])


def exec_plainly(arguments: Sequence[str]) -> NoReturn:
    """``rankscope run`` on a Python that capture does not support: become torchrun. The ranks' hook warns once.

    Args:
        arguments: those of ``rankscope run``.

    Raises:
        LaunchError: an option that neither has, no script, or torchrun cannot be started.
        ConfigError: an invalid value of an option.
    """
    flags = installed_options().flags
    variables, rest = take_options(arguments, flags)
    options, script = leading_options(rest, flags)
    environ = profiled_environment({**os.environ, **variables})
    refuse_to_nest(environ)
    script = script[1:] if script[:1] == ["--"] else script
    replace_process(command([word for words in options for word in words], script, environ), environ)


def refuse_to_nest(environ: Mapping[str, str]) -> None:
    """Fail where this process is already one rank of a job: each of its ranks would start a whole job of its own.

    Raises:
        LaunchError: it is.
        LauncherError: the launcher's variables contradict each other.
    """
    who = identify(environ)
    if who.started_by_launcher and (who.world_size or 1) > 1:
        raise LaunchError(
            f"this process is already rank {who.rank} of {who.world_size}, started by {who.launcher}: "
            "torchrun inside it would start a job in each of them",
            hint=f"let {who.launcher} start the script itself, with {RUN_DIR_VARIABLE} set to one directory for all "
            "ranks, or call `rankscope run` outside it",
        )


def accelerators() -> int:
    """How many devices torch sees on this host, asked in a process of its own; 0 without any or without torch."""
    if _hidden() or not any(Path(path).exists() for path in (*_GPU_FILES, _GRAPHICS_FILES)):
        return 0
    try:
        asked = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, timeout=120, check=False)
        return int(asked.stdout.strip() or 0)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


def _workers() -> str:
    # torchrun's `auto` is one worker for each accelerator, but one for each core where there is none: too many ranks
    # for a default. The device files are looked at, as importing torch takes seconds.
    if not _hidden() and any(Path(path).exists() for path in _GPU_FILES):
        return "gpu"
    return "1" if _hidden() or not _has_xpu(Path(_GRAPHICS_FILES)) else "xpu"


def _hidden() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def _has_xpu(folder: Path) -> bool:
    # Every graphics card has files there; Level Zero's loader as well means that one computes.
    return "ONEAPI_ROOT" in os.environ and folder.exists() and any(folder.glob("renderD*"))


def _name(option: str) -> str:
    return option.partition("=")[0].lstrip("-").replace("_", "-")


def main() -> None:
    """Run torchrun in this process."""
    # It announces that it sets OMP_NUM_THREADS to 1 where that is not set and there are several ranks, on four lines.
    logging.getLogger("__main__").addFilter(lambda record: "OMP_NUM_THREADS" not in str(record.msg))
    try:
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        # Both are torch.distributed.elastic.multiprocessing's; they are known by name, as nothing here imports torch.
        # The workers have ended by then.
        if type(error).__name__ == "SignalException" and hasattr(error, "sigval"):
            sys.exit(128 + int(error.sigval))
        if type(error).__name__ == "ChildFailedError":
            # Its table says which rank failed and how; the twenty lines of torchrun's traceback add nothing.
            sys.stderr.write(f"{error}\n")
            sys.exit(1)
        raise


if __name__ == "__main__":
    main()
