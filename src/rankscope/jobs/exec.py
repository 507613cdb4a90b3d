"""Profiling a script without changing it: options of the capture become variables of the job's environment.

`rankscope exec [options] python train.py` starts a command in that environment under any launcher;
`python -m rankscope.jobs.exec` is the same where rankscope was installed with --no-deps. An image with a Python that
capture does not support starts its job by it, too: this module and those it loads run on Python 3.8 (see
`capture/hook/sitecustomize.py`).

In: a command line. Out: the job's environment and command.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rankscope.errors import LaunchError, RankscopeError
from rankscope.rundir.capture_files import HOOK_FOLDER, HOOK_VARIABLE
from rankscope.rundir.config import OPTIONS, SWITCH_FIELDS, CaptureConfig, variable_of
from rankscope.rundir.directory import absolute_directory, is_store_url
from rankscope.rundir.options import OFF

SWITCHES = frozenset(
    spelled
    for option, name in OPTIONS.items()
    if name in SWITCH_FIELDS
    for spelled in (option, "--" + option[2:].replace("-", "_"))
)
"""Options of a capture that need no value, in both spellings."""


def leading_options(arguments: Sequence[str], flags: Collection[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Divide a command line at its first word that is not an option.

    Args:
        arguments: the command line.
        flags: options that take no value; any other takes the next word, unless its value is attached (``--a=1``,
            ``-t3``).

    Returns:
        The options, each with its value if that is a word of its own; and the rest, which may begin with ``--``.
    """
    options: list[tuple[str, ...]] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        attached = "=" in word or (len(word) > 2 and not word.startswith("--"))
        options.append((word,) if attached or word in flags or not rest else (word, rest.pop(0)))
    return options, rest


def take_options(arguments: Sequence[str], flags: Collection[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Divide a command line into variables for the capture and the rest.

    Args:
        arguments: the command line; options of a capture are taken up to the first word that is not an option.
        flags: other options that take no value.

    Raises:
        LaunchError: a value is missing, or given to an option that takes none.
        ConfigError: an invalid value.
    """
    variables: dict[str, str] = {}
    written: dict[str, str] = {}
    kept: list[str] = []
    options, rest = leading_options(arguments, {*flags, *SWITCHES})
    for words in options:
        option, equals, value = words[0].partition("=")
        name = OPTIONS.get(option.replace("_", "-"))
        if name is None:
            kept += words
            continue
        if not equals and option not in SWITCHES and len(words) == 1:
            raise LaunchError(f"{option} needs a value")
        turns_off = option.replace("_", "-").startswith(OFF)
        if equals and turns_off:
            raise LaunchError(f"{option} takes no value")
        written[name] = option
        variables[variable_of(name)] = value if equals else words[1] if len(words) > 1 else "0" if turns_off else "1"
    for name in ("save_dir", "staging_dir"):
        if variables.get(variable_of(name)) == "":
            # A shell's variable that is not set; as a path it would be the working directory.
            del variables[variable_of(name)]
    CaptureConfig.resolve({}, variables, written)
    for name in ("save_dir", "staging_dir"):
        variable = variable_of(name)
        if variable in variables and not (name == "save_dir" and is_store_url(variables[variable])):
            # Before any change of directory in the job.
            variables[variable] = absolute_directory(variables[variable])
    return variables, [*kept, *rest]


def profiled_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every Python process profiles the steps of its optimizer."""
    found = environ.get("PYTHONPATH", "")
    others = [entry for entry in found.split(os.pathsep) if entry and Path(entry) != HOOK_FOLDER]
    return {**environ, HOOK_VARIABLE: "1", "PYTHONPATH": os.pathsep.join([str(HOOK_FOLDER), *others])}


def exec_command(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by ``[options] command [arguments]``, profiled.

    Raises:
        LaunchError: no command, one that does not exist, or an unknown option.
        ConfigError: an invalid value of an option.
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
    replace_process(command, profiled_environment({**os.environ, **variables}))


def replace_process(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Become another command.

    Raises:
        LaunchError: it cannot be started.
    """
    try:
        if sys.platform == "win32":
            # There, exec returns to the caller before the command has ended.
            sys.exit(subprocess.run(command, env=environ, check=False).returncode)
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started: {error.strerror}") from error


if __name__ == "__main__":
    try:
        exec_command(sys.argv[1:])
    except RankscopeError as error:
        sys.exit(f"error: {error}")
