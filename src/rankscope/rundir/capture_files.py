"""Files of ``rankscope.capture`` that other packages use by path, because importing that package loads torch.

``jobs`` puts the hook's folder on ``PYTHONPATH``, ``doctor`` runs the probe in a separate process.

In: nothing. Out: paths.
"""

from __future__ import annotations

from pathlib import Path

import rankscope

# `importlib.resources.files` is younger than the oldest Python that `exec` starts jobs with.
_CAPTURE = Path(rankscope.__file__).parent / "capture"
HOOK_FOLDER = _CAPTURE / "hook"
"""Holds the ``sitecustomize.py`` that profiles an unmodified script."""
HOOK_VARIABLE, BY_RUN = "RANKSCOPE_HOOK", "run"
"""Set where the hook is to profile the process; to ``BY_RUN`` by `rankscope run`, which reports the end of the job."""
PROBE_SCRIPT = _CAPTURE / "probe.py"
"""Prints what torch finds on this machine, as lines of JSON."""
