"""Traces of any size with known truth: a simulated training job, written as Kineto writes.

``simulate(out, job)`` writes one trace per rank and ``truth.json``; ``simulate_timing(job)`` gives the truth alone, in
memory. The same job gives the same bytes, and a fault changes nothing but what it causes: its cost is the same seed's
run with it less that without it. Nothing of the analysis side is used here, so that neither can share an error.

Stages: ``job`` (what is asked for) → ``program`` (what each rank does in a step, out of ``cells`` and ``calls``) →
``engine`` (when; all ranks at once) → ``trace`` (the text, out of ``pieces``) → ``files``; ``truth`` beside them.
"""

from __future__ import annotations

from rankscope.simulate.job import Fault, Job, Lost, Recording, parse_mesh
from rankscope.simulate.run import Written, scaled, simulate, simulate_timing
from rankscope.simulate.truth import Truth

__all__ = [
    "Fault",
    "Job",
    "Lost",
    "Recording",
    "Truth",
    "Written",
    "parse_mesh",
    "scaled",
    "simulate",
    "simulate_timing",
]
