"""Counts how often the launcher has started this rank on this host.

This includes attempts of an elastic job that ended before capture began and so left nothing in the run directory. Each
process adds its id to a file in the temporary directory that is named after its launcher's process. If a shell or
another program stands between the launcher and the rank, every process appears to be the first.

In: the launcher's process, and the local rank. Out: the number of earlier starts.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from rankscope.capture.rank_owner import process_stat
from rankscope.rundir.staging import owned_name, user_folder


def is_elastic() -> bool:
    """Whether the launcher may restart this rank."""
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") not in ("", "0")


def earlier_starts() -> int:
    """How many processes the launcher started for this local rank before this one.

    The first call also registers this process, so it should come as early as possible; later calls change nothing.
    """
    if not is_elastic():
        return 0
    with suppress(OSError, ValueError, LookupError):
        name = f"starts-{int(os.environ['LOCAL_RANK'])}"
        launcher, own = os.getppid(), str(os.getpid())
        path = Path(user_folder(tempfile.gettempdir()), owned_name(name, launcher, process_stat(launcher)[1]))
        known = path.read_text().split() if path.exists() else []
        if own not in known:
            with path.open("a") as file:
                file.write(f"{own}\n")
        return known.index(own) if own in known else len(known)
    return 0
