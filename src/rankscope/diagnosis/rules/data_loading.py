"""The device waits for data.

Fires if a rank's device is idle for 1 % of the step or more while the host loads data. The saving is that time on the
rank that has most of it: a loader that is always ready would leave none.
"""

from __future__ import annotations

from rankscope.diagnosis.step_costs import mean_per_step, on_worst_rank, severity_of, step_ns, step_words, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, with the ranks whose loading is worth it."""
    step, loading = step_ns(inputs), mean_per_step(inputs, "data_loading_ns")
    worst = max(loading, key=lambda rank: loading[rank], default=None)
    severity = None if worst is None else severity_of(loading[worst], step)
    unit = step_words(inputs)
    if worst is None or severity is None or step is None:
        return []
    ranks = tuple(rank for rank, value in loading.items() if severity_of(value, step) is not None)
    return [
        Finding(
            rule.name,
            severity,
            f"The device waits for data {unit.share(loading[worst], step)}{on_worst_rank(inputs, worst, ranks)}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"data loading with an idle device, {unit.per}, at worst", loading[worst], "ns"),
                Evidence("mean over ranks", round(sum(loading.values()) / len(loading)), "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            saving_ns=loading[worst],
            advice=(
                "Give the DataLoader more workers (num_workers), persistent_workers=True and a larger prefetch_factor, "
                "pin_memory=True with non_blocking copies, or move the transforms out of the training process."
            ),
        )
    ]


rule = Rule("data_loading", __doc__, ("step_time",), find)
