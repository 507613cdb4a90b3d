"""Versions: Python, rankscope, and the packages that it needs; and whether its compiled reader is there.

In: the installed packages. Out: checks.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata

from rankscope import __version__
from rankscope.jobs.doctor.check import Check
from rankscope.rundir.capture_files import has_compiled_reader
from rankscope.rundir.versions import release

_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([0-9.]+))?")


def checks() -> Iterator[Check]:
    """Whether rankscope's requirements are installed, and new enough."""
    python = platform.python_version()
    yield Check("software", "rankscope", "ok", f"rankscope {__version__}, Python {python}, {platform.platform()}")
    try:
        required = metadata.requires("rankscope") or []
    except metadata.PackageNotFoundError:
        required = []
    # Those of extras, and of other versions of Python, have a condition.
    wanted = [match for line in required if ";" not in line and (match := _REQUIREMENT.match(line))]
    absent, old, there = [], [], []
    for match in wanted:
        name, least = match[1], match[2]
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
            continue
        there.append(f"{name} {found}")
        if least and release(found) < release(least):
            old.append(f"{name} {found} is older than {least}")
    if old:
        yield Check("software", "packages", "fail", "; ".join(old), "pip install --upgrade rankscope")
    if absent and there:
        what = f"not installed: {', '.join(absent)}: traces cannot be analyzed here, only captured"
        yield Check("software", "packages", "warn", what, "pip install rankscope, without --no-deps")
    elif absent:
        yield Check("software", "packages", "ok", "capture alone is installed here (pip install --no-deps)")
    elif not old:
        yield Check("software", "packages", "ok", ", ".join(there))
    if there and not absent:
        what = (
            "traces are read by the compiled reader"
            if has_compiled_reader()
            else "traces are read by Python alone, in twice the time: there was no `cargo` when rankscope was installed"
        )
        yield Check("software", "reader", "ok", what)
