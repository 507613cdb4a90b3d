"""The schedule, by the name that capture knows it by; job scripts, which see no capture, use it as `rundir.schedule`.

In: `rundir.schedule`. Out: its names.
"""

from rankscope.rundir.schedule import Window, windows

__all__ = ["Window", "windows"]
