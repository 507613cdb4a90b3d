"""torch.compile breaks the graph or recompiles it.

Fires if compiled code of the recorded steps consists of several frames, or of one that was compiled more than once
(`compile`), and the time around its calls is large enough: Dynamo's guards and lookups, AOTAutograd's prologues, and
compilation in recorded steps. The saving is the device's idle time in them (on the CPU their time), on the rank with
the most, less what one graph would keep of the lookups; a part of the mean step. What a single step of several does,
such as the first compilation, is left out. What fusion across the breaks would gain is not known and not included.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import SLOW_HOST
from rankscope.answers.diagnosis.recurring_costs import cost_of
from rankscope.answers.diagnosis.step_costs import per_step, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule

_SHOWN = 3
_WHOLE = r"^entire_(frame|backward)_compile"


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    frame = inputs.results.get("compile")
    if frame is None or frame.is_empty():
        return []
    regions = frame.filter(pl.col("kind") == "region")
    # Ranks run the same code: what all of them made again counts once.
    frames = regions["frame"].n_unique()
    again = regions.filter(pl.col("version").fill_null(0) > 0).select("frame", "version").n_unique()
    if frames < 2 and not again:
        return []
    # The parts of compiling nest: the range of the entire frame represents them.
    around = frame.filter(
        (pl.col("kind") == "overhead") | ((pl.col("kind") == "compiling") & pl.col("name").str.contains(_WHOLE))
    )
    # Where the host is ahead of its device, its lookups cost nothing.
    spent = pl.coalesce("idle_in_steps_ns", "host_in_steps_ns")
    kept = pl.when(pl.col("kind") == "overhead").then(1 / (frames + again)).otherwise(0.0)
    around = around.with_columns((spent * (1 - kept)).alias("saved_ns"))
    cost = cost_of(around, "saved_ns", ("window_ns",), inputs)
    if cost is None:
        return []
    worst, unit = cost.worst, cost.unit
    taken = per_step(cost.rows, "host_in_steps_ns", inputs)[worst.rank]
    compiling = around.filter((pl.col("rank") == worst.rank) & (pl.col("kind") == "compiling"))["host_ns"].sum()
    evidence = [
        Evidence("compiled frames", frames, "count"),
        Evidence("compiled again", again, "count"),
        Evidence(f"guards, lookups and compiling, {unit.per}", taken, "ns"),
        Evidence(f"of which with an idle device, without one graph's share, {unit.per}", worst.saving_ns, "ns"),
        Evidence("compile time, entire file", int(compiling), "ns"),
        cost.length,
    ]
    breaks = frame.filter((pl.col("rank") == worst.rank) & (pl.col("kind") == "break"))["name"].head(_SHOWN)
    evidence += [Evidence("break", name[:200]) for name in breaks.to_list()]
    title = f"The compiled model consists of {frames} graphs" if frames > 1 else "The model is recompiled"
    return [
        Finding(
            rule.name,
            worst.severity,
            title,
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=tuple(evidence),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "compile_overhead", worst.rank),
            advice=(
                "TORCH_LOGS=graph_breaks,recompiles shows where and why; torch.compile(fullgraph=True) rejects breaks. "
                "Keep .item(), prints and data-dependent branches out of the model; mark_dynamic sizes that change."
            ),
        )
    ]


rule = Rule(
    "graph_breaks", __doc__, ("step_time", "compile", "evidence_events"), find, parts=("host",), symptom_of=(SLOW_HOST,)
)
