"""What is computed of step times: speed-up, efficiency, overheads, and a law of scaling fitted to them.

T1 is the step of the plain job, Tn that of n ranks. Strong scaling keeps the global batch, weak scaling the batch per
rank, so that n ranks do n times the work.

=================  ======================  ==========
..                 strong                  weak
=================  ======================  ==========
speed-up S         T1 / Tn                 n T1 / Tn
efficiency E       S / n                   S / n
derived overhead   1 - E                   1 - E
perfect step       T1 / n                  T1
=================  ======================  ==========

measured overhead = (T_sync - T_no_sync) / T_sync, with gradient synchronization switched off in the same job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STRONG, WEAK = "strong", "weak"


def speed_up(t1: Any, tn: Any, ranks: int, mode: str) -> Any:
    """S, of numbers or of arrays of them."""
    return t1 / tn if mode == STRONG else ranks * t1 / tn


def efficiency(t1: Any, tn: Any, ranks: int, mode: str) -> Any:
    """E = S / n."""
    return speed_up(t1, tn, ranks, mode) / ranks


def derived_overhead(t1: Any, tn: Any, ranks: int, mode: str) -> Any:
    """1 - E."""
    return 1 - efficiency(t1, tn, ranks, mode)


def measured_overhead(sync: Any, no_sync: Any) -> Any:
    """The part of the step that synchronization is."""
    return (sync - no_sync) / sync


@dataclass(frozen=True)
class Law:
    """The Universal Scalability Law: S(n) = n / (1 + sigma (n - 1) + kappa n (n - 1)).

    N. J. Gunther, Guerrilla Capacity Planning, 2007. With kappa 0 it is Amdahl's law, sigma the serial part.
    """

    contention: float
    coherence: float

    def speed_up(self, ranks: float) -> float:
        """S(n)."""
        return ranks / (1 + self.contention * (ranks - 1) + self.coherence * ranks * (ranks - 1))


def fit_law(ranks: Sequence[int], speed_ups: Sequence[float]) -> Law:
    """The law through S(1) = 1 that is nearest to these.

    n / S - 1 = (n - 1) (sigma + kappa n) is linear in both, which are fitted by least squares and kept from falling
    below 0. One point alone, or points of one size, determine sigma; kappa is 0 then.

    Args:
        ranks: sizes above 1.
        speed_ups: theirs.

    Raises:
        ValueError: no size above 1.
    """
    points = [(n, n / s - 1) for n, s in zip(ranks, speed_ups, strict=True) if n > 1 and s > 0]
    if not points:
        raise ValueError("no size above 1 to fit a law to")
    a = [n - 1.0 for n, _ in points]
    b = [n * (n - 1.0) for n, _ in points]
    y = [value for _, value in points]

    def only(x: list[float]) -> float:
        return max(0.0, _dot(x, y) / _dot(x, x))

    candidates = [Law(only(a), 0.0)]
    if len({n for n, _ in points}) > 1:
        candidates.append(Law(0.0, only(b)))
        determinant = _dot(a, a) * _dot(b, b) - _dot(a, b) ** 2
        sigma = (_dot(a, y) * _dot(b, b) - _dot(b, y) * _dot(a, b)) / determinant
        kappa = (_dot(b, y) * _dot(a, a) - _dot(a, y) * _dot(a, b)) / determinant
        if sigma >= 0 and kappa >= 0:
            return Law(sigma, kappa)
    # One of them is at its bound.
    return min(candidates, key=lambda law: sum((_predict(law, n) - value) ** 2 for n, value in points))


def _predict(law: Law, n: int) -> float:
    return law.contention * (n - 1) + law.coherence * n * (n - 1)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
