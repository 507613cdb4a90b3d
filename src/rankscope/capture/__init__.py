"""Profiles this rank of a training job without harming the job. Needs only torch and the standard library.

In: the options of ``CaptureConfig``, from the script or from ``RANKSCOPE_*`` variables, and the steps of the loop.
Out: traces and manifests in the run directory.

A window, module by module: ``profiler`` passes each step to ``window_recorder``, which follows the schedule. Some steps
before the warm-up, ``votes`` decides for all ranks whether the window is recorded. ``recording`` starts torch's
profiler, ``step_log`` times the steps, and ``collectives`` notes what the job communicates. At the end of the window
``inflight`` waits for pending collectives, the recording is stopped in the loop or off it (``stop_mode``), and
``trace_queue`` takes it. From there on all happens in the thread of ``writer``: ``votes`` confirms the window,
``trace_edits`` and ``packing`` put the metadata of ``this_rank`` into the saved file, compress it and move it into the
run directory, ``rank_log`` lists it in the rank's manifest, and ``uploads`` copies it.

- This rank: ``this_rank``, from ``process``, ``rank_owner``, ``environment`` and ``parallelism``.
- The end: ``exit_hooks`` and ``signals``. What a user reads: ``notices``.
- A job that hangs: ``hang``. An always-on log and windows on request: ``watch``.
- An unmodified script: ``hook/sitecustomize.py`` loads ``auto_profiler``, which counts the steps of ``optimizers``. The
  script's own torch profilers: ``script_profilers``.
- Jobs to try it on: ``workloads``. What a job that is measured runs: ``measured``, which ``hook`` loads.
- Code written for torch's profiler: ``torch_compat``, ``integrations``. The doctor's questions to torch: ``probe``.
"""

from __future__ import annotations

from rankscope.capture.hang.watch import HangWatch
from rankscope.capture.notices import CaptureWarning
from rankscope.capture.profiler import Profiler
from rankscope.rundir.config import CaptureConfig

__all__ = ["CaptureConfig", "CaptureWarning", "HangWatch", "Profiler"]
