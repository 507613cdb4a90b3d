"""How capture warns: as ``CaptureWarning`` or in the log, never by an exception.

In: a message. Out: a warning or a line in the log.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import warnings
from contextlib import suppress
from pathlib import Path

from rankscope.rundir.code_places import is_installed

logger = logging.getLogger("rankscope.capture")
_STDLIB = sysconfig.get_path("stdlib")
_shown: dict[str | tuple[str, type[Warning], int], int] = {}
"""The warnings without a line, as ``warnings`` notes which it has shown."""


class CaptureWarning(UserWarning):
    """The capture did not go as requested; the job itself continues unharmed."""


def warn(text: str) -> None:
    """Issue a warning; log it instead where warnings are errors or cannot be shown, because capture never stops a
    job."""
    try:
        message, line = f"rankscope: {text}", _users_line()
        if line is None:
            warnings.warn_explicit(message, CaptureWarning, "rankscope", 1, registry=_shown)
        else:
            warnings.warn(message, CaptureWarning, stacklevel=line)
    except Exception:  # of a filter or a `showwarning` of the job's, or because sys.stderr is closed
        with suppress(Exception):
            logger.warning("%s", text)


def _users_line() -> int | None:
    """How many frames above :func:`warn` the user's own code is; ``None`` if this thread runs none, as the writer's."""
    level, frame = 1, sys._getframe(1)
    while True:
        path = Path(frame.f_code.co_filename)
        own = str(frame.f_globals.get("__name__")).startswith("rankscope.")
        installed = path.is_relative_to(_STDLIB) or is_installed(path)
        # "<string>" is the command line of a process that multiprocessing has started, or of python -c.
        if not own and not installed and not path.name.startswith(("<frozen ", "<string>")):
            return level
        if frame.f_back is None:
            return None
        level, frame = level + 1, frame.f_back
