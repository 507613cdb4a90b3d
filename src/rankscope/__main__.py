"""Entry point of the command line: `rankscope`, and `python -m rankscope`.

In: the arguments of the command line. Out: what the subcommand prints and writes, and an exit status.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C, as a shell has it."""
_START_JOBS = ("run", "exec", "measure", "demo", "doctor")
"""Commands that start programs of the user, whose environment stays as it is."""


def start() -> None:
    """Run the command line; if its packages are missing, explain how to install them. Ctrl-C ends it silently."""
    try:
        _start()
    except KeyboardInterrupt:
        import signal  # here, as are all imports that take time: Ctrl-C during one must be caught

        # In the middle of an import, for example. A second one must not show a traceback either.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(INTERRUPTED)


def _start() -> None:
    import os

    from rankscope.rundir.versions import OLDEST_PYTHON

    if sys.version_info < OLDEST_PYTHON:
        _start_plainly(sys.argv[1:])
    if sys.argv[1:2] and sys.argv[1] not in _START_JOBS:
        # Polars' allocator keeps what is freed for up to 1.5 s: where ranks are compared, as much as is in use.
        os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    try:
        from rankscope.cli import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rankscope"):
            raise
        sys.exit(
            f"error: the command line needs {error.name}, which is not installed\n"
            "  → pip install rankscope, without --no-deps; capture alone (rankscope.Profiler) needs only torch"
        )
    main()


def _start_plainly(arguments: list[str]) -> None:
    """On a Python that rankscope does not support: start a job as it is, and nothing else."""
    from rankscope.errors import RankscopeError
    from rankscope.rundir.versions import OLDEST_PYTHON

    oldest = ".".join(map(str, OLDEST_PYTHON))
    try:
        if arguments[:1] == ["exec"]:
            from rankscope.jobs.exec import exec_command

            exec_command(arguments[1:])
        if arguments[:1] == ["run"]:
            from rankscope.jobs.torchrun import exec_plainly

            exec_plainly(arguments[1:])
    except RankscopeError as error:
        sys.exit(f"error: {error}")
    sys.exit(f"error: rankscope needs Python {oldest} or newer; with an older one, run and exec start a job as it is")


if __name__ == "__main__":
    start()
