"""Find where a larger job loses time compared with one that would scale perfectly.

In: the measured steps of two sizes. Out: the lost time by cause, in ns.
"""

from __future__ import annotations

from rankscope.experiments.measure.formulas import STRONG
from rankscope.experiments.measure.results import EfficiencyLoss, TraceSummary


def efficiency_loss_at(
    at: TraceSummary, base: TraceSummary, step_ns: float, base_step_ns: float, ranks: int, mode: str
) -> EfficiencyLoss:
    """The parts of Tn minus those of the perfect step, which is T1 / n in strong scaling and T1 in weak.

    The recorded windows give the share of each part; the steps without a profiler give the duration of a step.

    Args:
        at: the traces of this size.
        base: the traces of T1.
        step_ns: Tn.
        base_step_ns: T1.
        ranks: n.
        mode: ``strong`` or ``weak``.
    """
    divisor = ranks if mode == STRONG else 1
    scale_n, scale_1 = step_ns / at.window_ns, base_step_ns / base.window_ns / divisor

    def change(name: str) -> float:
        return float((getattr(at, name) or 0) * scale_n - (getattr(base, name) or 0) * scale_1)

    wait = None if at.exposed_wait_ns is None else at.exposed_wait_ns * scale_n
    return EfficiencyLoss(
        total_ns=round(step_ns - base_step_ns / divisor),
        compute_ns=round(change("compute_ns")),
        exposed_communication_ns=round(change("exposed_communication_ns")),
        wait_ns=None if wait is None else round(wait),
        data_loading_ns=round(change("data_loading_ns")),
        other_ns=round(change("other_ns")),
    )
