"""Profiles this rank of a training job without harming the job. Needs only torch and the standard library.

In: the options of ``CaptureConfig``, from the script or from ``RANKSCOPE_*`` variables, and the steps of the loop.
Out: traces and manifests in the run directory.

- What a user calls: ``profiler`` (with ``torch_compat``, torch's methods), ``integrations``.
- The loop: ``window_recorder`` follows the schedule, ``votes`` decides for all ranks, ``recording`` drives torch,
  ``stop_mode`` chooses where it is stopped, ``step_log`` times the steps, ``collectives`` (with ``flight_recorder`` and
  ``inflight``) notes what the job communicates.
- Off the loop: ``writer`` is the thread, ``trace_queue`` what it does: ``staging``, ``packing``, ``trace_edits``,
  ``uploads``, and the manifest in ``rank_log``.
- This rank: ``this_rank``, from ``process``, ``rank_owner``, ``environment`` and ``parallelism``.
- The end: ``exit_hooks`` and ``signals``.
- A job that hangs: ``hang_watch`` notices it, ``hang_dump`` writes what this rank does.
- An unmodified script: ``hook/sitecustomize.py`` loads ``auto_profiler``, which counts the steps of ``optimizers``.
- The script's own torch profilers: ``script_profilers`` notices them, ``adoption`` and ``adopted_window`` save what
  they record, ``inert_profile`` replaces them, ``profiler_conflicts`` gives them priority.
"""

from __future__ import annotations

from rankscope.capture.hang_watch import HangWatch
from rankscope.capture.notices import CaptureWarning
from rankscope.capture.profiler import Profiler
from rankscope.rundir.config import CaptureConfig

__all__ = ["CaptureConfig", "CaptureWarning", "HangWatch", "Profiler"]
