"""Start a job with a run directory of its own: ``rankscope run`` on the command line, ``rankscope.launch`` in Python.

``rankscope.launch`` is both this package and the function that starts a job: the package can be called, and what it
calls is :func:`rankscope.launch.job.launch`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from rankscope.launch.job import JobResult, launch

__all__ = ["JobResult", "launch"]


class _CallableModule(ModuleType):
    """Importing this package binds ``rankscope.launch`` to the module, over the function of that name. Which of the
    two a user finds would depend on what was imported before; so the module is callable, and both are right."""

    def __call__(self, *args: Any, **options: Any) -> JobResult:
        return launch(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
