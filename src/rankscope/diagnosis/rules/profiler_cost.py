"""The profiler itself makes steps longer.

Fires if the ranks' manifests show that a recorded step took 5 % longer or more than one that was not recorded: the
medians of each rank, and the rank where they differ most. It is never more than an info: the job needs no fix, but
all figures come from slowed-down steps, and short operators are affected most.
"""

from __future__ import annotations

from rankscope.diagnosis.step_costs import WARNING_SHARE, on_worst_rank, profiler_overhead
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    added = profiler_overhead(inputs)
    plain = {manifest.rank: manifest.step_median_ns.get("wait", 0) for manifest in inputs.capture}
    shares = {rank: value / plain[rank] for rank, value in added.items() if plain.get(rank)}
    worst = max(sorted(shares), key=lambda rank: shares[rank], default=None)
    if worst is None or shares[worst] < WARNING_SHARE:
        return []
    ranks = tuple(sorted(rank for rank, share in shares.items() if share >= WARNING_SHARE))
    whose = on_worst_rank(inputs, worst, ranks)
    return [
        Finding(
            rule.name,
            "info",
            f"A recorded step takes {100 * shares[worst]:.0f} % longer than one that is not recorded{whose}",
            ranks=ranks,
            evidence=(
                Evidence("median step, not recorded", plain[worst] or 0, "ns"),
                Evidence("added by recording", added[worst], "ns"),
            ),
            advice=(
                "Compare runs with the same profiler settings. with_stack, record_shapes and profile_memory cost most; "
                "without them the profiler adds less."
            ),
        )
    ]


rule = Rule("profiler_cost", __doc__, (), find)
