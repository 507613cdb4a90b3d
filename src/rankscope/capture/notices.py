"""How capture warns: as ``CaptureWarning`` or in the log, never by an exception.

In: a message. Out: a warning or a line in the log.
"""

from __future__ import annotations

import logging
import sys
import warnings

logger = logging.getLogger("rankscope.capture")


class CaptureWarning(UserWarning):
    """The capture did not go as requested; the job itself continues unharmed."""


def warn(text: str) -> None:
    """Issue a warning; log it instead where warnings are errors, because capture never stops a job."""
    # Point at the user's line: the first frame outside capture and context managers.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("rankscope.capture", "contextlib")
    ):
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(f"rankscope: {text}", CaptureWarning, stacklevel=level)
    except CaptureWarning:
        logger.warning("%s", text)
