"""The profiler itself makes steps longer.

Speaks where the manifests of the ranks say that a recorded step took longer than one that was not, by 5 % or more: the
medians of each rank, and the rank where they differ most. It is never more than a hint: nothing is to be mended in the
job, but the figures are of steps that are longer than its own, and short operators suffer most.
"""

from __future__ import annotations

from rankscope.diagnosis.step_costs import WARNING_SHARE, on_worst, profiler_adds
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    added = profiler_adds(inputs)
    plain = {manifest.rank: manifest.step_median_ns.get("wait", 0) for manifest in inputs.capture}
    shares = {rank: value / plain[rank] for rank, value in added.items() if plain.get(rank)}
    worst = max(sorted(shares), key=lambda rank: shares[rank], default=None)
    if worst is None or shares[worst] < WARNING_SHARE:
        return []
    ranks = tuple(sorted(rank for rank, share in shares.items() if share >= WARNING_SHARE))
    whose = on_worst(inputs, worst, ranks)
    return [
        Finding(
            rule.name,
            "info",
            f"A recorded step takes {100 * shares[worst]:.0f} % longer than one that is not recorded{whose}",
            ranks=ranks,
            evidence=(
                Evidence("median step, not recorded", plain[worst] or 0, "ns"),
                Evidence("more when recorded", added[worst], "ns"),
            ),
            advice=(
                "Compare runs that were recorded alike. with_stack, record_shapes and profile_memory cost most; "
                "without them the profiler adds less."
            ),
        )
    ]


rule = Rule("profiler_cost", __doc__, (), find)
