"""The numbers that the detectors decide by, and where each comes from.

Shares are of a step. "Seeds 0–99" means: set on simulated jobs with these seeds, so that less than 1 % of clean runs
have a finding. "Convention" means that no measurement favors a particular value. `python -m benchmarks.diagnosis
ablation` shows what moving each number changes; benchmarks/README.md has its results.

In: nothing. Out: the thresholds, as one object that benchmarks can vary.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """All thresholds of the straggler engine; the defaults are what it uses."""

    # Late in every step.
    standard_errors: float = 5.0  # seeds 0–99: hiccups have heavy tails; at 2.5, 3 of 76 clean runs have a finding
    standard_errors_single: float = 10.0  # twice that for a single step of a device, whose own spread is not known
    significance: float = 0.01  # of Student's test, with too few peers to estimate random variation; convention
    significance_part: float = 0.001  # … of a part of the local time: there are ten of them (Bonferroni)
    least: float = 0.01  # smaller ones, or hosts that cost their rank less, are no finding; convention
    least_saving: float = 0.002  # … nor smaller savings: 6 µs per step with a wrong cause (seed 21032)
    left: float = 0.5  # of what a part has more, in the local time: else another part made up for most of it
    enough: float = 0.05  # of a step, a delay that is a warning: of what is not known, less is ignored; convention
    least_recurring: float = 0.1  # … of a step, in each of few steps at one place where the peers are not; convention
    stated: float = 0.2  # if a delay must be larger than that to be found, there are too few steps to rule one out
    wanted: float = 0.1  # … and so many steps are recommended that one of this size would be found; convention
    # Late in some steps.
    chance: float = 6.0  # times chance, in each late step of some, of a stall, or of two or three; seeds 0–99
    by_chance: float = 0.001  # cases expected among all ranks: 1 % over ten measures (Bonferroni)
    least_passing: float = 0.05  # in each of its late steps; at 0.03 clean seed 17026 has a finding
    tail: float = 1.5  # measured hiccups of hosts fall off with this power
    # The least random variation that is assumed, of a step.
    floor_device: float = 0.002  # of kernels, copies and calls for memory (H100 set; test_detectors)
    floor_host: float = 0.004  # seeds 0–99; doubled, one of 71 small faults less is found (21000–22109)
    floor_few: float = 0.01  # … with fewer than `FEW` values of others; seeds 0–99
    floor_few_hosts: float = 0.03  # … likewise, where the hosts compute (Gloo sets: up to 0.05)
    of_idle: float = 0.3  # of two ranks: of what a device is idle for longer, so much must its host take longer; pairs
    # Stalls.
    stall: float = 0.1  # shorter ones are not reported; convention
    stall_share: float = 0.25  # … nor those shorter than this share of a step and …
    stall_ns: int = 20_000_000  # … than this: what hosts lose by chance is shorter (seeds 8000–8110)
