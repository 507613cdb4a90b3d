"""Lets a thread of the capture query the device while the job captures a CUDA graph.

A query of an event (``cudaEventQuery``), and so a reading of NCCL's Flight Recorder, invalidates every graph that
another thread is capturing in the default mode, and the job fails. A thread whose own capture mode is thread-local
takes no part in the captures of others: on an H100 with torch 2.11, the same queries without it failed the capture.

In: a thread that wants to query. Out: whether it may.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from rankscope.capture.environment import device_in_use

_THREAD_LOCAL = 1
"""``CU_STREAM_CAPTURE_MODE_THREAD_LOCAL``, and HIP's."""
_LIBRARIES = {
    "cuda": (("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",), "cuThreadExchangeStreamCaptureMode"),
    "hip": (tuple(f"libamdhip64.so{end}" for end in ("", ".7", ".6", ".5")), "hipThreadExchangeStreamCaptureMode"),
}


@contextmanager
def queries_beside_capture() -> Iterator[bool]:
    """Within it, this thread may query events without harm to a graph that another thread captures.

    Yields:
        whether that is so. It is not on XPU, nor where the device's library has no such mode.
    """
    if device_in_use() != "cuda":
        yield device_in_use() is None
        return
    exchange = _exchange_mode()
    mode = ctypes.c_int(_THREAD_LOCAL)  # becomes the mode before
    is_set = exchange is not None and exchange(ctypes.byref(mode)) == 0
    try:
        yield is_set
    finally:
        if is_set and exchange is not None:
            exchange(ctypes.byref(mode))


@functools.cache
def _exchange_mode() -> Callable[[Any], int] | None:
    """The function of the device's library, which torch has loaded; None if it is not found."""
    names, function = _LIBRARIES["hip" if torch.version.hip else "cuda"]
    mode = getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_LAZY", 0)
    for name in names:
        with suppress(OSError, AttributeError):
            found: Callable[[Any], int] = getattr(ctypes.CDLL(name, mode=mode), function)
            return found
    return None
