"""How capture speaks: a warning, once for each kind of trouble, and never as an exception."""

from __future__ import annotations

import logging
import sys
import warnings

logger = logging.getLogger("rankscope.capture")


class CaptureWarning(UserWarning):
    """Something about the capture went otherwise than asked; the job itself goes on unharmed."""


def warn(text: str) -> None:
    """Warn as Python does; where warnings are errors, log instead: capture never stops a job."""
    # Point at the user's line: the first frame that is neither ours nor of a context manager.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("rankscope.capture", "contextlib")
    ):
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(f"rankscope: {text}", CaptureWarning, stacklevel=level)
    except CaptureWarning:
        logger.warning("%s", text)
