"""How often the launcher has started this rank on this host: in attempts of an elastic job, too, in which it ended
before its capture began, and left nothing in the run directory.

Each process adds its id to a file that belongs to its launcher's process, in the temporary directory. Where something
else starts the ranks of a launcher, as a shell around the script, every process seems to be the first.

In: the launcher's process, and the local rank. Out: a number.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from rankscope.capture.rank_owner import process_stat
from rankscope.rundir.staging import owned_name, user_folder


def is_elastic() -> bool:
    """Whether this is a rank that its launcher may start again."""
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") not in ("", "0")


def earlier_starts() -> int:
    """How many processes the launcher has started before this one for its local rank; to be called as early as
    possible, and as often as needed."""
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
