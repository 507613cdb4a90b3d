"""The environment of a job that is profiled without a change to its script, and `rankscope exec`, which starts a
command in it under whatever launcher is there.

`python -m rankscope.jobs.exec [options] python train.py` is the same where rankscope was installed beside torch
alone.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from rankscope.errors import LaunchError, RankscopeError
from rankscope.rundir.capture_files import HOOK_FOLDER
from rankscope.rundir.config import CaptureConfig, variable_of
from rankscope.rundir.directory import directory_of

HOOK_VARIABLE = "RANKSCOPE_HOOK"
_OPTION_OF = {"save_dir": "--run-dir"}
OPTIONS = {_OPTION_OF.get(f.name, "--" + f.name.replace("_", "-")): f.name for f in fields(CaptureConfig)}
"""The options of a capture on the command line, and the field of :class:`CaptureConfig` that each sets."""
SWITCHES = {option for option, name in OPTIONS.items() if isinstance(getattr(CaptureConfig, name, None), bool)}
"""Those of them that need no value."""


def take_options(arguments: Sequence[str], flags: Collection[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Divide a command line into variables for the capture and the rest, up to its first word that is no option.

    Args:
        arguments: the command line.
        flags: options of others that take no value; any other is passed over with the word behind it.

    Raises:
        LaunchError: a value is missing.
        ConfigError: a value that cannot be meant.
    """
    variables: dict[str, str] = {}
    kept: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        option = "--" + option.removeprefix("--").replace("_", "-") if option.startswith("--") else option
        if option in OPTIONS:
            if not equals and option in SWITCHES:
                value = "1"
            elif not equals:
                if not rest:
                    raise LaunchError(f"{option} needs a value")
                value = rest.pop(0)
            variables[variable_of(OPTIONS[option])] = value
            continue
        kept.append(word)
        if not equals and word not in flags and rest:
            kept.append(rest.pop(0))
    CaptureConfig.resolve({}, variables)
    for name in ("save_dir", "staging_dir"):
        variable = variable_of(name)
        if variable in variables:
            # Before any change of directory in the job.
            variables[variable] = str(Path(directory_of(variables[variable])).expanduser().absolute())
    return variables, [*kept, *rest]


def hooked(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every Python process counts the steps of its optimizer."""
    found = environ.get("PYTHONPATH", "")
    others = [entry for entry in found.split(os.pathsep) if entry and Path(entry) != HOOK_FOLDER]
    return {**environ, HOOK_VARIABLE: "1", "PYTHONPATH": os.pathsep.join([str(HOOK_FOLDER), *others])}


def exec_command(arguments: Sequence[str]) -> NoReturn:
    """Become ``[options] command [arguments]``, profiled.

    Raises:
        LaunchError: no command, one that does not exist, or an option that is not known.
        ConfigError: an option's value cannot be meant.
    """
    variables, command = take_options(arguments)
    if command and command[0] == "--":
        del command[0]
    elif command and command[0].startswith("-"):
        near = difflib.get_close_matches(command[0].partition("=")[0].replace("_", "-"), OPTIONS, 2, 0.7)
        known = f"did you mean {' or '.join(near)}?" if near else "known: " + ", ".join(OPTIONS)
        raise LaunchError(f"{command[0]} is not an option of rankscope exec", hint=known)
    if not command:
        raise LaunchError("no command", hint="rankscope exec [options] python train.py [arguments]")
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    environ = hooked({**os.environ, **variables})
    try:
        if sys.platform == "win32":
            # An exec there leaves the caller behind before the command has ended.
            sys.exit(subprocess.run(command, env=environ, check=False).returncode)
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started: {error.strerror}") from error


if __name__ == "__main__":
    try:
        exec_command(sys.argv[1:])
    except RankscopeError as error:
        sys.exit(f"error: {error}")
