"""All checks, in the order in which they are shown.

In: what to check. Out: all checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rankscope.jobs.doctor import devices, disk, host, launcher, logs, network, run, software
from rankscope.jobs.doctor.check import Check


def run_checks(
    folder: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    more_logs: Sequence[Path] = (),
    cache: Path | None = None,
    timeout_s: float = 120.0,
) -> Iterator[Check]:
    """Check this machine, and a run if one is given.

    Args:
        folder: a run directory.
        environ: the environment, ``os.environ`` by default.
        more_logs: files with a job's output, besides those in the run directory.
        cache: the directory of the tables' cache.
        timeout_s: how long to wait for torch.
    """
    environ = os.environ if environ is None else environ
    yield from software.checks()
    yield from devices.checks(devices.ask_torch(environ, timeout_s), environ)
    yield from launcher.checks(environ)
    yield from network.checks(environ)
    yield from host.checks()
    yield from disk.checks(folder, environ, cache)
    if folder is not None:
        yield from run.checks(folder)
    yield from logs.checks(folder, more_logs)
