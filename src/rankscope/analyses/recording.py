"""Cost of recording: what each rank's profiler wrote and skipped, and how much it slowed the loop.

One row per rank whose manifest (`ranks/rank3.json`, written by `rankscope.Profiler` and `rankscope run`) is in the run
directory; none for traces of other tools, which do not record this.

    stall      = Σ over windows of the time that the training loop was blocked by the profiler
    off_loop   = Σ of the work outside the loop: verify, compress, sync, rename
    step_cost  = median of recorded steps − median of steps that were not recorded

`step_cost` is the overhead that makes the steps in the traces longer than the job's normal steps. Skipped windows were
not recorded; failed ones were recorded but could not be written; `reasons` says why.

How to read it: times in the traces are too long by about `step_cost`; stacks, shapes and memory make recording
expensive. `stall_ns` is outside the recorded steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.results import Analysis, Column, Finding, Headline, Inputs, greatest, schema_of, total_of
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("host", pl.String, "", "the rank's host"),
    Column("state", pl.String, "", "`finished` or `interrupted` once everything was written, else `running`"),
    Column("restarts", pl.Int64, "count", "number of restarts of the job"),
    Column("steps", pl.Int64, "count", "steps that the loop ran under the profiler"),
    Column("traces", pl.Int64, "count", "traces written"),
    Column("bytes", pl.Int64, "bytes", "their size on disk"),
    Column("json_bytes", pl.Int64, "bytes", "their size before compression"),
    Column("stall_ns", pl.Int64, "ns", "time that the loop was blocked by the profiler"),
    Column("off_loop_ns", pl.Int64, "ns", "time of the profiler's work outside the loop"),
    Column("plain_step_ns", pl.Int64, "ns", "median of steps that were not recorded; null if there are none"),
    Column("recorded_step_ns", pl.Int64, "ns", "median of recorded steps; null if there are none"),
    Column("step_cost_ns", pl.Int64, "ns", "recorded minus plain step"),
    Column("step_cost", pl.Float64, "ratio", "step cost as a share of a plain step"),
    Column("skipped", pl.Int64, "count", "windows that were not recorded"),
    Column("failed", pl.Int64, "count", "windows that could not be written"),
    Column("removed", pl.Int64, "count", "traces removed to stay within limits"),
    Column("reasons", pl.String, "", "why windows were skipped or failed"),
    Column("warnings", pl.String, "", "warnings of the profiler"),
    Column("stopping", pl.String, "", "where recording was stopped: `thread`, outside the loop, or `loop`"),
    Column("compressor", pl.String, "", "the program or module that compressed the traces"),
)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """One row per manifest."""
    rows = [_row(manifest) for manifest in inputs.capture if manifest.rank is not None]
    return pl.DataFrame(rows, schema=schema_of(COLUMNS), strict=False).sort("rank", "restarts"), []


def _row(manifest: RankManifest) -> dict[str, object]:
    plain, recorded = manifest.step_median_ns.get("wait"), manifest.step_median_ns.get("active")
    cost = recorded - plain if plain is not None and recorded is not None else None
    return {
        "rank": manifest.rank,
        "host": manifest.host,
        "state": manifest.state,
        "restarts": manifest.restart_count,
        "steps": manifest.steps,
        "traces": len(manifest.written),
        "bytes": _sum([trace.bytes for trace in manifest.written]),
        "json_bytes": _sum([trace.json_bytes for trace in manifest.written]),
        "stall_ns": _sum([trace.stall_ns for trace in manifest.written]),
        "off_loop_ns": _sum([trace.off_loop_ns for trace in manifest.written]),
        "plain_step_ns": plain,
        "recorded_step_ns": recorded,
        "step_cost_ns": cost,
        "step_cost": cost / plain if cost is not None and plain else None,
        "skipped": len(manifest.skipped),
        "failed": len(manifest.failed),
        "removed": manifest.rotated,
        "reasons": _joined([window.reason for window in (*manifest.skipped, *manifest.failed)]),
        "warnings": _joined(manifest.warnings),
        "stopping": manifest.capture.get("stop"),
        "compressor": manifest.capture.get("compressor"),
    }


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _joined(texts: Sequence[str]) -> str | None:
    return "; ".join(dict.fromkeys(text for text in texts if text)) or None


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    if not frame.height:
        return None
    traces, lost = total_of(frame, "traces"), total_of(frame, "skipped") + total_of(frame, "failed")
    values: dict[str, tuple[int | float | str, str]] = {"traces": (traces, "count")}
    text = f"{{traces}} {plural('trace', traces)} written"
    if lost:
        text, values["lost"] = f"{text}, {{lost}} {plural('window', lost)} lost.", (lost, "count")
    else:
        text = f"{text}, none lost."
    worst = greatest(frame, "step_cost")
    if worst is None:
        return Headline.of(text, **values)
    text += " Recording makes a step {cost} longer"
    values["cost"] = (worst["step_cost"], "ratio")
    if frame.height > 1:
        text, values["rank"] = f"{text} (at most, on rank {{rank}})", (worst["rank"], "")
    return Headline.of(f"{text}.", **values)


analysis = Analysis(
    name="recording", doc=__doc__, columns=COLUMNS, across_ranks=across_ranks, headline=headline, of_all_ranks=True
)
