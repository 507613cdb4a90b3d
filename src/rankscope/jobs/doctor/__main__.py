"""``python -m rankscope.jobs.doctor``: ``rankscope doctor`` with the standard library alone.

In: the arguments of `rankscope doctor`. Out: its output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from rankscope.jobs.doctor import Check, run_checks, worst
from rankscope.rundir.plurals import counted, printable

SCHEMA_VERSION = 1


def report(
    checks: Iterable[Check], *, as_json: bool = False, only_wrong: bool = False, clean: Callable[[str], str] = printable
) -> int:
    """Print checks as they come.

    Args:
        checks: the results, as they come.
        as_json: print one JSON object at the end.
        only_wrong: leave out those that are ok.
        clean: makes text safe for a terminal.

    Returns:
        The exit code: 1 where something failed, else 0.
    """
    done: list[Check] = []
    subject = None
    for check in checks:
        done.append(check)
        if as_json or (only_wrong and check.status == "ok"):
            continue
        if check.subject != subject:
            subject = check.subject
            print(subject)
        print(f"  {check.status:<4}  {clean(check.what)}", flush=True)
        if check.fix and check.status != "ok":
            print(f"        → {clean(check.fix)}", flush=True)
    status = worst(done)
    counts = {state: sum(check.status == state for check in done) for state in ("ok", "warn", "fail")}
    if as_json:
        shown = {"schema_version": SCHEMA_VERSION, "status": status, **counts, "checks": [asdict(c) for c in done]}
        print(json.dumps(shown, indent=1))
    else:
        warnings, failures = (counted(counts[s], w) for s, w in (("warn", "warning"), ("fail", "failure")))
        print(f"{counts['ok']} ok, {warnings}, {failures}")
    return 1 if status == "fail" else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m rankscope.jobs.doctor", description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN")
    parser.add_argument("--log", action="append", default=[], type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--only-wrong", action="store_true")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS")
    given = parser.parse_args()
    checks = run_checks(given.run, more_logs=given.log, timeout_s=given.timeout)
    return report(checks, as_json=given.as_json, only_wrong=given.only_wrong)


if __name__ == "__main__":
    sys.exit(main())
