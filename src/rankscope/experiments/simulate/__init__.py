"""Simulated training jobs with known truth, written as Kineto writes traces: any number of ranks, faults, broken files.

In: a :class:`Job`. Out: a run directory with one trace per rank and ``truth.json``; ``simulate_timing`` gives only the
truth, in memory. The same job gives the same bytes, and a fault changes only what it causes: its cost is the difference
between runs of one seed with and without it. No code of the analyses is used, so the two cannot share an error.

Stages: ``job`` (the request) → ``program`` (what each rank does in a step, made of ``cells``) → ``engine`` (the times
    of
all ranks) → ``events`` and ``trace`` (structs, by rank) → ``kineto`` (text) → ``files``; and ``truth``.
"""

from __future__ import annotations

from rankscope.experiments.simulate.job import Fault, Job, Lost, Recording, parse_mesh
from rankscope.experiments.simulate.run import Written, scaled, simulate, simulate_timing
from rankscope.experiments.simulate.truth import Truth

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
