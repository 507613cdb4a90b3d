"""Memory grows with every step.

Fires if, from the second recorded step on, at least three consecutive steps each end with more allocated memory than
the one before, by 0.01 % of the peak or 64 KiB per step, whichever is more. Something is kept: losses with their
graphs, a cache without a limit. It saves no time; the job ends when memory runs out. If the device's size is known,
the evidence gives the number of steps until then.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.step_costs import shown_size
from rankscope.results import Evidence, Finding, Inputs, Rule

_STEPS = 3
"""In a row: with fewer, growth may be a cache that fills."""
_LEAST = 64 << 10
"""Bytes per step: less may be lists of numbers, such as losses."""
_SHARE = 0.0001
"""Of the peak: a device that is half full is then full after ten thousand steps."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    steps, totals = inputs.results.get("memory_by_step"), inputs.results.get("memory")
    if steps is None or steps.is_empty():
        return []
    # The first step of a window has no step before it; the first growth is still the cache's and the optimizer's.
    later = steps.sort("step").with_columns(pl.int_range(pl.len()).over("rank", "window", "device").alias("n"))
    later = later.filter((pl.col("n") > 1) & pl.col("growth").is_not_null())
    grown = (
        later.group_by("rank", "window", "device")
        .agg(
            pl.len().alias("steps"),
            pl.col("growth").min().alias("least"),
            pl.col("growth").median().alias("growth"),
            pl.coalesce("peak_allocated", "change_peak").max().alias("peak"),
            pl.col("step").alias("numbers"),
        )
        .filter(
            (pl.col("steps") >= _STEPS)
            & (pl.col("least") > 0)
            & (pl.col("growth") >= pl.max_horizontal(pl.lit(_LEAST), _SHARE * pl.col("peak")))
        )
        .sort("growth", "rank", descending=[True, False])
    )
    if grown.is_empty():
        return []
    worst = grown.row(0, named=True)
    evidence = [
        Evidence(f"growth per step, rank {worst['rank']}, {worst['device']}", round(worst["growth"]), "bytes"),
        Evidence("steps in a row", worst["steps"], "count"),
        Evidence("peak", worst["peak"], "bytes"),
    ]
    room = _room(totals, worst)
    if room is not None:
        evidence.append(Evidence("steps until the device is full", round(room / worst["growth"]), "count"))
    return [
        Finding(
            rule.name,
            "warning",
            f"Memory grows by {shown_size(worst['growth'])} with every step",
            ranks=tuple(grown["rank"].unique().sort().to_list()),
            steps=tuple(sorted(worst["numbers"])),
            evidence=tuple(evidence),
            anchor=event_anchor(inputs, "step", worst["rank"], steps=worst["numbers"]),
            advice=(
                (
                    ""
                    if job_of(inputs).infers
                    else "Keep loss.item() or loss.detach(), not the loss: it keeps its entire graph alive. "
                )
                + "Bound caches and lists that the loop adds to. `rankscope analyze memory --by operator` shows which "
                "operators' results are kept."
            ),
        )
    ]


def _room(totals: pl.DataFrame | None, worst: dict[str, object]) -> int | None:
    if totals is None:
        return None
    own = totals.filter((pl.col("rank") == worst["rank"]) & (pl.col("device") == worst["device"]))
    known = own.filter(pl.col("total_memory").is_not_null() & pl.col("peak_allocated").is_not_null())
    return None if known.is_empty() else int(known["total_memory"][0]) - int(known["peak_allocated"][-1])


rule = Rule("memory_growth", __doc__, ("memory", "memory_by_step", "evidence_events"), find)
