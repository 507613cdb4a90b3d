"""``python -m rankscope.jobs.gather``: ``rankscope gather`` with the standard library alone.

In: the arguments of `rankscope gather`. Out: its output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rankscope.errors import RankscopeError
from rankscope.jobs.gather import Gathered, completeness, gather, parse_source
from rankscope.rundir.plurals import printable
from rankscope.rundir.ranks import parse_ranks


def run_gather(
    run: Path,
    sources: Sequence[str],
    *,
    shell: str = "ssh",
    part: bool = False,
    world_size: int | None = None,
    ranks: str | None = None,
    as_json: bool = False,
) -> int:
    """Gather, and print what was copied and what is missing.

    Args:
        run: the run directory.
        sources: ``HOST:DIR`` or directories.
        shell: the remote shell with its options.
        part: this is one of several gathers into it: do not check for completeness.
        world_size: how many ranks there should be, if no manifest has it.
        ranks: which ranks were to be recorded, if no manifest has it.
        as_json: print JSON instead.

    Returns:
        The exit code: 0, or 1 where something is missing.

    Raises:
        RankscopeError: a source cannot be read, a file differs, or an argument is not valid.
    """
    if ranks is not None:
        parse_ranks(ranks)  # not after an hour of copying

    def print_progress(one: Gathered) -> None:
        if not as_json:
            files = f"{one.files} file{'s' * (one.files != 1)}"
            print(f"{printable(one.source)}: {files}, {one.new} new ({one.bytes / 1e6:.1f} MB)", flush=True)

    brought = gather(run, [parse_source(source, shell) for source in sources], print_progress)
    if part:
        return 0
    found = completeness(run, world_size, ranks)
    if as_json:
        shown = {**asdict(found), "missing": found.missing, "whole": found.whole}
        print(json.dumps({"schema_version": 1, "sources": [asdict(one) for one in brought], **shown}, indent=1))
    else:
        for line in found.report():
            print(line)
    return 0 if found.whole else 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m rankscope.jobs.gather", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("sources", nargs="*", metavar="HOST:DIR")
    parser.add_argument("--ssh", default="ssh", metavar="COMMAND")
    parser.add_argument("--part", action="store_true")
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--ranks")
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    try:
        code = run_gather(
            given.run,
            given.sources,
            shell=given.ssh,
            part=given.part,
            world_size=given.world_size,
            ranks=given.ranks,
            as_json=given.as_json,
        )
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, such as `head`, has ended; Python would flush once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RankscopeError as error:
        print(f"error: {printable(str(error).replace(chr(10), ' '))}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
