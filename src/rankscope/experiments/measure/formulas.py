"""Speed-up, efficiency and overheads from step times, and a scaling law fitted to them.

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

In: step times in ns, and numbers of ranks. Out: ratios, and the law's coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STRONG, WEAK = "strong", "weak"


def speed_up(t1: Any, tn: Any, ranks: int, mode: str) -> Any:
    """S, for numbers or arrays."""
    return t1 / tn if mode == STRONG else ranks * t1 / tn


def efficiency(t1: Any, tn: Any, ranks: int, mode: str) -> Any:
    """E = S / n."""
    return speed_up(t1, tn, ranks, mode) / ranks


def derived_overhead(t1: Any, tn: Any, ranks: int, mode: str) -> Any:
    """1 - E."""
    return 1 - efficiency(t1, tn, ranks, mode)


def measured_overhead(sync: Any, no_sync: Any) -> Any:
    """The share of the step that synchronization takes."""
    return (sync - no_sync) / sync


@dataclass(frozen=True)
class ScalabilityLaw:
    """The Universal Scalability Law: S(n) = n / (1 + sigma (n - 1) + kappa n (n - 1)).

    N. J. Gunther, Guerrilla Capacity Planning, 2007. With kappa 0 it is Amdahl's law, sigma the serial part.
    """

    contention: float
    coherence: float

    def speed_up(self, ranks: float) -> float:
        """S(n)."""
        return ranks / (1 + self.contention * (ranks - 1) + self.coherence * ranks * (ranks - 1))


def fit_scalability_law(ranks: Sequence[int], speed_ups: Sequence[float]) -> ScalabilityLaw:
    """Fit the law through S(1) = 1 to measured speed-ups.

    n / S - 1 = (n - 1) (sigma + kappa n) is linear in both parameters: least squares, with both at least 0.
    Points of a single size determine sigma only; kappa is then 0.

    Args:
        ranks: sizes above 1.
        speed_ups: the measured speed-up of each.

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

    candidates = [ScalabilityLaw(only(a), 0.0)]
    if len({n for n, _ in points}) > 1:
        candidates.append(ScalabilityLaw(0.0, only(b)))
        determinant = _dot(a, a) * _dot(b, b) - _dot(a, b) ** 2
        sigma = (_dot(a, y) * _dot(b, b) - _dot(b, y) * _dot(a, b)) / determinant
        kappa = (_dot(b, y) * _dot(a, a) - _dot(a, y) * _dot(a, b)) / determinant
        if sigma >= 0 and kappa >= 0:
            return ScalabilityLaw(sigma, kappa)
    # One of the two is at its bound, 0.
    return min(candidates, key=lambda law: sum((_predict(law, n) - value) ** 2 for n, value in points))


def _predict(law: ScalabilityLaw, n: int) -> float:
    return law.contention * (n - 1) + law.coherence * n * (n - 1)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
