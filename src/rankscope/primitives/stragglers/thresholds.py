"""The numbers that the detectors decide by, and where each comes from.

Shares are of a step. "Set on 0–99" means: on simulated jobs with these seeds, so that clean runs stay below 1 % of
findings; `python -m benchmarks.diagnosis ablation` shows what moving each number changes (benchmarks/README.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """All thresholds of the straggler engine; the defaults are what it uses."""

    # Late in every step.
    standard_errors: float = 5.0  # set on 0–99: hiccups have heavier tails than a normal distribution
    standard_errors_single: float = 10.0  # of a single step of a device, whose own spread is not known
    significance: float = 0.01  # of Student's test, where there are too few peers to know chance from; by convention
    significance_part: float = 0.001  # … of a part of the local time: there are ten of them
    far: float = 6.0  # times `floor_few`, in every step, where two or three steps of a few ranks are all there is
    least: float = 0.01  # less is not worth a word
    least_saving: float = 0.002  # … nor is such a saving; at 0.003 a fault is lost, at 0.01 one from 5 % (21000–22109)
    left: float = 0.5  # of what a part has more, so much must be left in the local time: else another made up for it
    enough: float = 0.05  # if a delay must be larger than that to be found, there are too few steps to tell
    # Late in some steps.
    chance: float = 6.0  # times chance, in each of these steps; set on 0–99
    by_chance: float = 0.001  # cases expected among all ranks, by an extrapolation of what was seen
    least_passing: float = 0.05  # in each of its late steps; at 0.03 clean seed 17026 has a finding
    tail_host: float = 1.5  # measured hiccups of hosts fall off with this power
    tail_device: float = 3.0  # a device's long kernels take 1.25 times their median at most (measured)
    # Chance is not taken for less than this, of a step.
    floor_device: float = 0.001  # kernels of one device differ by that from step to step (H100 set)
    floor_calls: float = 0.002
    floor_host: float = 0.004
    floor_few: float = 0.01  # … with fewer than `few` values of others
    floor_few_hosts: float = 0.03  # … likewise, where the hosts compute (gloo sets: up to 0.05)
    # Whether the host is to blame for what its device waited.
    of_idle: float = 0.3  # of the time its device was idle, so much must its host have taken longer …
    host_chance: float = 1.5  # … and so many times what hosts differ by on average
    slow_and_behind: float = 4.0  # times what hosts differ by, of its pace, if its device is behind in every step
    least_lost: float = 0.01  # a slow host must have cost its rank so much
    # Stalls.
    stall: float = 0.1  # a shorter one is not worth a word
    stall_share: float = 0.25  # … nor one that is shorter than this share of a step and …
    stall_ns: int = 20_000_000  # … than this: what hosts lose by chance is shorter (seeds 8000–8110)
    stall_chance: float = 6.0  # times what other steps and ranks differ by
