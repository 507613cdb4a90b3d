"""One rank receives much more than the others in all-to-alls.

Fires if what a rank receives in the dispatches of its group, or in uneven exchanges without a role, is at least 1.2
times the mean of the group over the recorded steps (`all_to_all`): an info; from twice the mean on, a warning. The
ranks of the group all wait for that rank's experts, or embedding tables. Combines mirror the dispatches and are left
out. It needs the traces of all ranks of the group. What it costs depends on how the work grows with the data, which the
exchange does not show: there is no saving; `imbalance` and `stragglers` have the cost in time.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import collective_anchor, collectives_of
from rankscope.answers.diagnosis.effects import RECEIVES_MORE
from rankscope.answers.diagnosis.step_costs import number_of_steps, step_words, steps_of
from rankscope.primitives.job_kind import JobKind
from rankscope.results import Anchor, Evidence, Finding, Inputs, Rule

_LEAST, _WARNING = 1.2, 2.0
_BY = ["group", "group_ranks", "role"]


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the worst group of each role."""
    frame = inputs.results.get("all_to_all")
    if frame is None or frame.is_empty():
        return []
    uneven = pl.col("uneven_calls").sum().over(_BY) > 0
    loads = (
        frame.filter(uneven & (pl.col("role").fill_null("") != "combine") & pl.col("imbalance").is_not_null())
        .group_by(*_BY, "peer", maintain_order=True)
        .agg(pl.col("sent_bytes").sum().alias("load"), pl.col("imbalance").first(), pl.col("calls").max())
    )
    hot = loads.filter(pl.col("imbalance") >= _LEAST)
    worst = hot.sort("imbalance", "peer", descending=[True, False]).unique("role", keep="first", maintain_order=True)
    return [_finding(row, loads, inputs) for row in worst.iter_rows(named=True)]


def _finding(row: dict[str, object], loads: pl.DataFrame, inputs: Inputs) -> Finding:
    of_group = loads.filter(*(pl.col(name).eq_missing(row[name]) for name in _BY))
    hot = of_group.filter(pl.col("imbalance") >= _LEAST).sort("imbalance", "peer", descending=[True, False])
    ratio, job, unit = float(str(row["imbalance"])), job_of(inputs), step_words(inputs)
    count = max(number_of_steps(inputs), 1)
    per = unit.per if steps_of(inputs) else "in the traces"
    what = "dispatched tokens" if row["role"] == "dispatch" else "all-to-all data"
    mean = float(of_group["load"].to_numpy().mean())
    return Finding(
        rule.name,
        "warning" if ratio >= _WARNING else "info",
        f"Rank {row['peer']} receives {ratio:.2g} times the mean of its group in {what}",
        ranks=tuple(hot["peer"].to_list()),
        steps=steps_of(inputs),
        evidence=(
            Evidence("group", f"{row['group']} of {of_group.height} ranks"),
            Evidence(f"rank {row['peer']} receives {per}", round(float(str(row["load"])) / count), "bytes"),
            Evidence(f"mean of the group {per}", round(mean / count), "bytes"),
            Evidence("relative to the mean", round(ratio, 4), "ratio"),
            Evidence(f"ranks from {_LEAST} times the mean on", hot.height, "count"),
            Evidence("exchanges of a rank", int(str(row["calls"])), "count"),
        ),
        anchor=_anchor(row, inputs),
        advice=_advice(job),
    )


def _anchor(row: dict[str, object], inputs: Inputs) -> Anchor | None:
    """The rank's longest exchange in its group."""
    exchange = pl.col("collective").str.starts_with("all_to_all")
    mine = (pl.col("rank") == row["peer"]) & (pl.col("group_ranks").cast(pl.String) == row["group_ranks"])
    reason = f"Rank {row['peer']} receives more than the other ranks in these exchanges"
    rows = collectives_of(inputs, exchange & mine)
    return None if rows is None else collective_anchor(inputs, rows, reason)


def _advice(job: JobKind) -> str:
    """How to even out what ranks receive in this kind of job."""
    if job.embeddings and not job.experts:
        return "Place embedding tables by their load, or shard the largest by rows."
    placed = "Place experts by their load, and copy the hottest to several ranks"
    if job.infers:
        return f"{placed} (expert-parallel load balancing)."
    if job.experts or job.exchanges_experts:
        return f"{placed}; or train with a balancing loss, a bias per expert, or a capacity."
    return f"{placed}; of sharded embeddings, place tables by their load, or shard the largest by rows."


rule = Rule(
    "exchange_imbalance", __doc__, ("step_time", "all_to_all", "collectives"), find, symptom_of=(RECEIVES_MORE,)
)
