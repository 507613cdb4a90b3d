"""The profiler itself makes steps longer.

Fires if the ranks' manifests show that a recorded step took 5 % longer or more than one that was not recorded: the
medians of each rank, and the rank where they differ most. By the rank-sum test (Wilcoxon, Mann and Whitney), the
recorded steps of that rank must be longer than its other ones. It is never more than an info: the job needs no fix, but
all figures come from slowed-down steps, and short operators are affected most.
"""

from __future__ import annotations

from rankscope.answers.diagnosis.step_costs import WARNING_SHARE, on_worst_rank, profiler_overhead
from rankscope.primitives.statistics import rank_sum_score
from rankscope.results import Evidence, Finding, Inputs, Rule
from rankscope.rundir.manifest import RankManifest

_WARMING = 5
"""The first steps of a job compile and fill caches."""
_SCORE = 2.33
"""Standard deviations: 1 % of a normal distribution is above. Three steps above all of 40 others have 2.9."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    added = profiler_overhead(inputs)
    plain = {manifest.rank: manifest.step_median_ns.get("wait", 0) for manifest in inputs.capture}
    longer = {manifest.rank for manifest in inputs.capture if _is_longer(manifest)}
    shares = {rank: value / plain[rank] for rank, value in added.items() if plain.get(rank) and rank in longer}
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
            advice="Compare runs with the same profiler settings.",
        )
    ]


def _is_longer(manifest: RankManifest) -> bool:
    """Whether the recorded steps of a rank are significantly longer than the others, of which the first warm up."""
    times: dict[str, list[int]] = {"wait": [], "active": []}
    for span in manifest.step_times:
        for step, ns in enumerate(span.ns, span.first_step):
            if step >= _WARMING and span.state in times:
                times[span.state].append(ns)
    return all(times.values()) and rank_sum_score(times["active"], times["wait"]) > _SCORE


rule = Rule("profiler_cost", __doc__, (), find)
