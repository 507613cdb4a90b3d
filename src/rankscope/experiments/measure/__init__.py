"""Experiments that run a training job several times, or change it while it runs, and report costs with uncertainty.

In: a script and what to vary. Out: a result file per experiment, with intervals, in the output directory.

``results`` defines the contents of the files, ``files`` reads and writes them, ``statistics`` computes intervals,
``formulas`` speed-up and efficiency, ``jobs`` runs a job; each experiment has a module.
The code that runs inside the job is in ``rankscope.capture.measured``.
"""

SCHEMA = 1
"""The schema number of result files; defined here so that a reader can recognize one without importing more."""
