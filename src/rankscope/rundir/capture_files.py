"""Files of other packages that are used by path, because importing those packages loads torch or the analysis side.

``jobs`` puts the hook's folder on ``PYTHONPATH``, ``doctor`` runs the probe in a separate process and looks whether
the compiled reader is there.

In: nothing. Out: paths.
"""

from __future__ import annotations

from pathlib import Path

import rankscope

# `importlib.resources.files` is younger than the oldest Python that `exec` starts jobs with.
_PACKAGE = Path(rankscope.__file__).parent
_CAPTURE = _PACKAGE / "capture"
HOOK_FOLDER = _CAPTURE / "hook"
"""Holds the ``sitecustomize.py`` that profiles an unmodified script."""
HOOK_VARIABLE, BY_RUN = "RANKSCOPE_HOOK", "run"
"""Set where the hook is to profile the process; to ``BY_RUN`` by `rankscope run`, which reports the end of the job."""
DIRECTORIES_VARIABLE = "RANKSCOPE_DIRECTORIES"
"""Set by `rankscope run` to a file in which its ranks note other run directories than it gave them."""
PROBE_SCRIPT = _CAPTURE / "probe.py"
"""Prints what torch finds on this machine, as lines of JSON."""


def has_compiled_reader() -> bool:
    """Whether the library of `ingest.native` is in the package."""
    return any((_PACKAGE / "ingest").glob("librankscope_reader.*"))
