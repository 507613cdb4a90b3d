"""Entry point of the command line: `rankscope`, and `python -m rankscope`.

In: the arguments of the command line. Out: what the subcommand prints and writes, and an exit status.
"""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C, as a shell has it."""


def start() -> None:
    """Run the command line; if its packages are missing, explain how to install them. Ctrl-C ends it silently."""
    try:
        _start()
    except KeyboardInterrupt:
        # In the middle of an import, for example. A second one must not show a traceback either.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(INTERRUPTED)


def _start() -> None:
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


if __name__ == "__main__":
    start()
