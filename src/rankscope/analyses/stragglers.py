"""Which rank holds the others up, by how much, and why.

One row per rank. A collective cannot finish before its last rank has come. On aligned clocks (`clock`) a rank's
lateness is its arrival less the median of the *other* ranks' arrivals; below the clocks' residual it is nothing.
`lateness_ns` is the worst of each step, averaged over the steps. `waited_ns` is the time in which others waited for
this rank: the union, step by step, of the waits it causes, for sums over overlapping collectives would count the same
time twice. A rank that came late because it waited in another group, or for the stage before it, passes the blame on;
of several stages that meet only those of the last one's are compared, for their programs come at different times.

Who is to blame is told by own time, step by step, from the last collective of one step to that of the next:

    own time = elapsed − exposed communication            excess = own time − median of its peers' own time

Peers are the other ranks with the same program (one pipeline stage). Ranks tied by collectives take equally long for
a step, but whoever waits has its device in a communication kernel and nothing else to do; so a victim, near or far,
has no excess. A rank is named if its excess, or that of a part of its time, exceeds what the others show by chance:
lastingly (its mean, in standard errors) or in some steps (so often as chance would not have it); its findings say so.
Hosts stumble, now here, now there: what a rank spends at the same place of its program in two steps is also held
against its peers by itself (Σ over places of the lesser of the two), and so is the pace of its host in each step (the
geometric mean over places). Where hosts run ahead of their devices and never wait for them, one falls behind by chance
and stays so: it is named only if its host itself takes longer, always or in some steps. Of a single whole step a host
is named for a quarter of it, or 2 ms, and more: record four. `saving_ns` is what a step gains at most if it took no
longer than the slowest of the others; more work is shared out evenly, so of n ranks it gains (n − 1) / n. Ranks that
fill a slice of the mesh or a host alike are one finding. A rank alone in its stage is held against its other steps and,
by the kernels that other stages launch too, against these; so is a stage whose ranks are all as slow, of three or more.

The cause is the part of its late steps that exceeds the peers':

- `slow_device`: the same kernels take longer; `more_work`: there are more, or larger ones (by name and launch grid; on
  the host operators by name and input shapes)
- `data_loading`: the device sat idle while the host was in its data loader
- `slow_host`: the device sat idle while the host ran operators, the runtime, or nothing that was recorded (asleep)
- `memory`: the device sat idle in allocations, or copied; calls for device memory that no other rank makes count with
  what they left the device idle for
- `slow_network` (a finding of its own): a group moves its data slower than groups of its kind do, or than in its
  other steps; where transfers differ from one to the next by several times, one by one (Wilcoxon, Mann and Whitney)
- `unclear`: nothing explains half of it

What is peculiar comes first, if it explains three tenths: a late rank's host also lacks the time in which the others'
hosts run ahead. Point-to-point operations are left out of lateness: in a pipeline a stage waits for the one before it
by design; in own time they are communication like any other.

How to read it: the rank with the most `waited_ns` holds the others up; where it has no cause, that may be chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from rankscope.primitives.arrival_skew import totals_by_rank_and_step
from rankscope.primitives.attribution import LocalTimeComparison, Straggler
from rankscope.primitives.clocks import base_times
from rankscope.primitives.communicators import POINT_TO_POINT, parse_group_ranks
from rankscope.primitives.delay_causes import CAUSES, Cause
from rankscope.primitives.intervals import Int64
from rankscope.primitives.local_time import WAITING, local_times, programs_by_rank
from rankscope.primitives.mesh import Mesh, infer_mesh, mesh_slices
from rankscope.primitives.slow_links import SlowLink, slow_links
from rankscope.primitives.step_alignment import COLUMNS as RECURRING
from rankscope.primitives.step_alignment import StepBounds, host_pieces, recurring_times, work_pieces
from rankscope.primitives.time_breakdown import (
    ENDED,
    PARTS,
    STARTED,
    cumulative_parts,
    previous_collectives,
    step_work,
)
from rankscope.primitives.wait_attribution import attribute_waits, with_aligned_arrivals
from rankscope.results import (
    Analysis,
    Column,
    Evidence,
    Finding,
    Headline,
    Inputs,
    Parameter,
    Tables,
    by_window,
    schema_of,
)
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("step", pl.Int64, "", "the step; null unless `--by step`, where what is over steps is of this one"),
    Column("lateness_ns", pl.Int64, "ns", "how late it came at worst in a step, mean over steps"),
    Column("waited_ns", pl.Int64, "ns", "time in which others waited for it, over all steps"),
    Column("last_share", pl.Float64, "ratio", "of its collectives, those where it came last by more than the residual"),
    Column("steps", pl.Int64, "count", "steps in which it was compared"),
    Column("late_steps", pl.Int64, "count", "steps in which it came last by more than the residual"),
    Column("cause", pl.String, "", "why it holds the others up; null where it does not by more than chance"),
    Column("cause_ns", pl.Int64, "ns", "what the cause explains of its own time beyond its peers', mean over steps"),
    Column("evidence", pl.String, "", "the numbers behind the cause"),
    Column(
        "saving_ns",
        pl.Int64,
        "ns",
        "what a step would gain at most if it took no longer than the slowest of the others",
    ),
)

_WORK = ("ranged", "work_ns", "pieces", "size")
# What a rank gives: its matched collectives, what its steps launched, and pairs of its steps.
_PARTS = {
    "collectives": pl.Schema(
        dict.fromkeys(
            ("rank", "window", "match", "previous", "step", "start_ns", "end_ns", "count", *STARTED, *ENDED), pl.Int64
        )
        | {"on_host": pl.Boolean}
    ),
    "launched": pl.Schema(dict.fromkeys(("rank", "window", "step", "work", *_WORK), pl.Int64)),
    "pairs": pl.Schema(dict.fromkeys(("rank", "window", *RECURRING), pl.Int64) | {"of_host": pl.Boolean}),
}


def per_rank(tables: Tables, inputs: Inputs) -> dict[str, pl.DataFrame]:
    """What the rank had done by each matched collective, what its steps launched, and how its steps compare."""
    own = inputs.results["collectives"].filter(pl.col("rank") == inputs.rank)
    return _concat(
        _of_window(window, own.filter(pl.col("window") == number), inputs, number)
        for number, window in enumerate(by_window(tables, inputs))
    )


def _concat(parts: Iterable[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """The frames of each name below one another."""
    found = list(parts)
    return {
        name: pl.concat(
            [pl.DataFrame(schema=schema), *(part[name].select(schema.names()).cast(schema) for part in found)]
        )
        for name, schema in _PARTS.items()
    }


def _of_window(window: Tables, own: pl.DataFrame, inputs: Inputs, number: int) -> dict[str, pl.DataFrame]:
    ended = np.sort(own["end_ns"].to_numpy())
    own = own.filter(pl.col("match").is_not_null() & ~pl.col("collective").is_in(POINT_TO_POINT))
    own = own.sort("start_ns", "end_ns")
    start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
    before = previous_collectives(own["group"].to_list(), _members(own), start, end)
    match = own["match"].to_numpy()
    extra = inputs.options.communication
    at, code = work_pieces(window["device_events"], window["host_ops"], window["annotations"], extra)
    until = cumulative_parts(window, np.concatenate([start, end, at]), extra)
    by_start, by_end, by_piece = (
        {part: each[n] for part, each in until.items()}
        for n in (slice(0, start.size), slice(start.size, 2 * start.size), slice(2 * start.size, None))
    )
    collectives = own.select("match", "step", "start_ns", "end_ns").with_columns(
        pl.Series("previous", np.where(before >= 0, match[before], -1) if match.size else match, pl.Int64),
        pl.Series("count", np.searchsorted(ended, end, side="right"), pl.Int64),
        pl.lit(window["device_events"].is_empty()).alias("on_host"),
        *(pl.Series(name, by_start[part], pl.Int64) for name, part in zip(STARTED, PARTS, strict=True)),
        *(pl.Series(name, by_end[part], pl.Int64) for name, part in zip(ENDED, PARTS, strict=True)),
    )
    of_rank = recurring_times(at, code, at - by_piece[WAITING], _bounds(own, end, end - by_end[WAITING]))
    of_host = recurring_times(*host_pieces(window["host_ops"], window["runtime_calls"], window["annotations"]))
    frames = {
        "collectives": collectives,
        "launched": step_work(window, extra),
        "pairs": pl.concat([of_rank.with_columns(of_host=pl.lit(False)), of_host.with_columns(of_host=pl.lit(True))]),
    }
    return {
        name: frame.with_columns(rank=pl.lit(inputs.rank, pl.Int64), window=pl.lit(number, pl.Int64))
        for name, frame in frames.items()
    }


def _bounds(own: pl.DataFrame, end: Int64, end_own: Int64) -> StepBounds:
    """Steps are told by the collectives that all recorded ranks of their group have."""
    whole = pl.col("matched_ranks") == pl.col("matched_ranks").max().over("group", "group_ranks")
    rows = own.select("step", whole.alias("whole"), pl.Series("end_ns", end), pl.Series("own_ns", end_own))
    return StepBounds.of(rows.filter("whole"))


def _members(own: pl.DataFrame) -> dict[str, frozenset[int]]:
    pairs = own.select("group", "group_ranks").unique().drop_nulls().rows()
    return {group: frozenset(found) for group, text in pairs if (found := parse_group_ranks(text)) is not None}


def across_ranks(parts: Sequence[Mapping[str, pl.DataFrame]], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Who is late, to whom it matters, and why."""
    ranks = sorted({info.rank for info in inputs.traces if info.rank is not None})
    stretches, work, again = _concat(parts).values()
    clock = inputs.results["clock"].select("rank", "offset_ns", "drift_ppm", "at_ns", "residual_ns", "component")
    rows = with_aligned_arrivals(stretches, clock, base_times(inputs.traces))
    if rows.is_empty():
        return _quiet(ranks), []
    cut = _cut(inputs)
    mesh = _mesh(inputs)
    stretches, work, again = (
        each.join(cut, on=["rank", "window"], how="anti", maintain_order="left") for each in (stretches, work, again)
    )
    role = _roles(mesh, inputs)
    standing = _standing(stretches, work, again, role, inputs) if stretches.height else None
    table, by_step = totals_by_rank_and_step(
        ranks, attribute_waits(rows, role, inputs.results["collectives"], standing)
    )
    verdicts = standing.blamed() if standing is not None else []
    table = _with_causes(table, verdicts)
    findings = _not_judged(cut)
    if standing is not None:
        links = slow_links(inputs.results["collectives"], standing.step_ns)
        sliced = standing.by_slice(verdicts, mesh_slices(mesh))
        findings = [*_findings(sliced, table), *_slow_networks(links, max(standing.steps.size, 1)), *findings]
    if inputs.parameters.get("by") == "step":
        table = _with_steps(by_step, standing, verdicts) if standing is not None else by_step
    return _complete(table), findings


def _cut(inputs: Inputs) -> pl.DataFrame:
    """Files that break off: rank, window. Of their steps any event can be missing, so each looks like less work."""
    files = base_times(inputs.traces).select("rank", "window")
    broken = pl.Series([info.truncated for info in inputs.traces if info.rank is not None], dtype=pl.Boolean)
    return files.filter(broken)


def _not_judged(cut: pl.DataFrame) -> list[Finding]:
    ranks = tuple(cut["rank"].unique().sort())
    if not ranks:
        return []
    title = "Ranks whose traces break off were not judged, nor was any other by them"
    return [Finding(id="not-judged", severity="info", title=title, ranks=ranks)]


def _standing(
    stretches: pl.DataFrame, work: pl.DataFrame, again: pl.DataFrame, role: Mapping[int, int], inputs: Inputs
) -> LocalTimeComparison:
    """The ranks' own times, step by step."""
    collectives = inputs.results["collectives"]
    groups = collectives.select("match", "group", "group_ranks").drop_nulls("match").unique("match")
    rows = stretches.join(groups, on="match", how="left").with_columns(
        pl.col("step").max().over("match"), pl.col("rank").n_unique().over("match").alias("ranks")
    )
    if rows["step"].null_count() == rows.height:
        rows = rows.with_columns(pl.lit(0, pl.Int64).alias("step"))
    rows = rows.with_columns((pl.col("ranks") == pl.col("ranks").max().over("group", "group_ranks")).alias("whole"))
    ended = rows.with_columns(pl.col(name).alias(part) for part, name in zip(PARTS, ENDED, strict=True))
    return LocalTimeComparison(local_times(ended), work, again, role, on_host=bool(stretches["on_host"].all()))


def _roles(mesh: Mesh, inputs: Inputs) -> dict[int, int]:
    """Which program each rank runs."""
    stage = mesh.frame.filter(pl.col("dimension") == mesh.pipeline) if mesh.pipeline else mesh.frame.clear()
    return programs_by_rank(inputs.results["collectives"], dict(stage.select("rank", "coordinate").iter_rows()))


def _mesh(inputs: Inputs) -> Mesh:
    groups = inputs.results["collectives"].select("group", "group_ranks").drop_nulls().unique().sort("group")
    named = [(name, found) for name, text in groups.iter_rows() if (found := parse_group_ranks(text)) is not None]
    return infer_mesh(inputs.traces, named)


def _quiet(ranks: Sequence[int]) -> pl.DataFrame:
    """Nothing to compare: every rank with nulls."""
    return _complete(pl.DataFrame({"rank": pl.Series(ranks, dtype=pl.Int64)}))


def _complete(table: pl.DataFrame) -> pl.DataFrame:
    """All columns in order; null what it has not."""
    return table.select(
        pl.col(name) if name in table.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema_of(COLUMNS).items()
    )


def _with_steps(by_step: pl.DataFrame, standing: LocalTimeComparison, verdicts: Sequence[Straggler]) -> pl.DataFrame:
    """Each rank in each step; causes in the steps in which it stands out."""
    schema = {"rank": pl.Int64, "step": pl.Int64, "cause": pl.String, "cause_ns": pl.Int64, "evidence": pl.String}
    late: list[tuple[int, int, str, int, str]] = []
    for each in verdicts:
        row, share, why = int(np.searchsorted(standing.ranks, each.ranks[0])), each.cause.share, each.cause
        for column in np.flatnonzero(standing.accused[row]):
            taken = standing.excess[row, column]
            told = round(taken * share) if np.isfinite(taken) else 0
            late.append((each.ranks[0], int(standing.steps[column]), why.cause, told, why.evidence))
    found = pl.DataFrame(late, schema=schema, orient="row")
    return by_step.join(found, on=["rank", "step"], how="left", maintain_order="left")


def _with_causes(table: pl.DataFrame, verdicts: Sequence[Straggler]) -> pl.DataFrame:
    """The causes beside the measures."""
    causes: dict[int, Cause] = {each.ranks[0]: each.cause for each in verdicts}
    excess_ns = {each.ranks[0]: each.excess_ns for each in verdicts}
    saving = {each.ranks[0]: each.saving_ns for each in verdicts}
    ranks = table["rank"].to_list()
    return table.with_columns(
        pl.Series("cause", [causes[r].cause if r in causes else None for r in ranks], dtype=pl.String),
        pl.Series("evidence", [causes[r].evidence if r in causes else None for r in ranks], dtype=pl.String),
        pl.Series(
            "cause_ns", [round(excess_ns[r] * causes[r].share) if r in causes else None for r in ranks], pl.Int64
        ),
        pl.coalesce(pl.Series([saving.get(r) for r in ranks], dtype=pl.Int64), "saving_ns").alias("saving_ns"),
    )


_ADVICE = {
    "slow_device": "Look at this device's clocks, temperature and neighbours, or swap it.",
    "more_work": "Even out what the ranks are given: batch sizes, sequence lengths, experts, uneven shards.",
    "data_loading": "Give its loader more workers, prefetch further, or look at the storage it reads from.",
    "slow_host": "Look at what else runs on its host, at CPU binding, garbage collection and synchronization.",
    "memory": "Look for allocation retries and copies: free memory, a fixed batch shape, expandable segments.",
    "slow_network": "Look at the links between the ranks of its group.",
    "unclear": "Record more on this rank: stacks (with_stack) and shapes.",
}


def _findings(blamed: Sequence[Straggler], table: pl.DataFrame) -> list[Finding]:
    """Ranks, or slices of the mesh, that hold the others up."""
    rows = {row["rank"]: row for row in table.iter_rows(named=True)}
    findings = []
    for each in blamed:
        mine = [rows[rank] for rank in each.ranks if rank in rows]
        cause = each.cause.cause
        findings.append(
            Finding(
                id="straggler",
                severity="warning" if each.lasting else "info",
                title=f"{_called(each)} holds the others up{'' if each.lasting else ' in some steps'}: "
                f"{each.cause.words}",
                ranks=each.ranks,
                steps=() if each.lasting else each.steps,
                evidence=(
                    Evidence("own time beyond its peers' median, mean over steps", each.excess_ns, "ns"),
                    Evidence("late at worst in a step, mean", max(row["lateness_ns"] or 0 for row in mine), "ns"),
                    Evidence("time others waited for it", max(row["waited_ns"] or 0 for row in mine), "ns"),
                    Evidence("steps in which it is late", len(each.steps), "count"),
                    Evidence("steps compared", each.compared, "count"),
                    Evidence(f"cause: {cause.replace('_', ' ')}", each.cause.evidence),
                ),
                saving_ns=each.saving_ns or None,  # it may gain nothing: another rank is as slow
                advice=_ADVICE.get(cause, ""),
            )
        )
    return findings


def _called(each: Straggler) -> str:
    """As a sentence begins; a slice of the mesh keeps its name: `dp=1`."""
    return each.label.capitalize() if len(each.ranks) == 1 else each.label


def _slow_networks(links: Sequence[SlowLink], steps: int) -> list[Finding]:
    """Groups that move the same data slower than their like."""
    findings = []
    for link in links:
        than = "those of its like" if link.groups else "in its other steps"
        when = "" if link.lasting else " in some steps"
        findings.append(
            Finding(
                id="slow-network",
                severity="warning" if link.lasting else "info",
                title=f"The collectives of group {link.group} move their data slower than {than}{when}",
                ranks=(parse_group_ranks(link.group_ranks) or ()) if link.group_ranks else (),
                steps=() if link.lasting else link.steps,
                evidence=(
                    Evidence("transfers take longer by", link.excess_ns, "ns"),
                    Evidence("of", link.expected_ns, "ns"),
                    Evidence("groups it is held against", link.groups, "count"),
                ),
                saving_ns=link.excess_ns // steps,
                advice=_ADVICE["slow_network"],
            )
        )
    return findings


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    if frame.height < 2:
        return None  # one rank alone holds nobody up
    if not frame["waited_ns"].drop_nulls().len():
        return Headline.of("No collective was matched across ranks: there is nothing to compare them by.")
    if frame["step"].null_count() < frame.height:
        return None  # by step there are several answers
    accused = frame.filter(pl.col("cause").is_not_null()).sort(
        "waited_ns", "saving_ns", "rank", descending=[True, True, False], nulls_last=True
    )
    if not accused.height:
        most = frame.sort("waited_ns", "rank", descending=[True, False], nulls_last=True).row(0, named=True)
        if not most["waited_ns"]:
            return Headline.of("No rank made the others wait.")
        return Headline.of(
            "No rank is late by more than chance explains; the others waited longest for rank {rank}: {waited} over "
            f"{{steps}} {plural('step', most['steps'])}.",
            rank=(most["rank"], ""),
            waited=(most["waited_ns"], "ns"),
            steps=(most["steps"], "count"),
        )
    worst = accused.row(0, named=True)
    values = {"rank": (worst["rank"], ""), "cause": (CAUSES.get(worst["cause"], worst["cause"]), "")}
    if not worst["waited_ns"]:
        return Headline.of("Rank {rank} holds the others up: {cause}.", **values)
    steps = f"{{steps}} {plural('step', worst['steps'])}"
    return Headline.of(
        f"Rank {{rank}} holds the others up: they waited {{waited}} for it over {steps}; {{cause}}.",
        waited=(worst["waited_ns"], "ns"),
        steps=(worst["steps"], "count"),
        **values,
    )


analysis = Analysis(
    name="stragglers",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "stream", "launch_ns", "grid"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth", "input_dims"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    requires=("collectives", "clock"),
    parameters=(Parameter("by", "what tells rows apart", default="rank", choices=("rank", "step"), of_reduce=True),),
    headline=headline,
    has_findings=True,
    shown_empty=True,
)
