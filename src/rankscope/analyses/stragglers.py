"""Stragglers: which rank delays the other ranks, by how much, and why.

One row per rank. A collective cannot finish before its last rank arrives. On aligned clocks (`clock`) a rank's
lateness is its arrival less the median of the *other* ranks' arrivals; lateness below the clocks' residual counts as 0.
`lateness_ns` is the largest of each step, averaged over the steps. `waited_ns` is the time in which other ranks waited
for this rank: the union, step by step, of the waits that it causes (a sum over overlapping collectives would count the
same time twice). A rank may arrive late because it waited itself, in another group or for the previous pipeline stage:
where its local time in that step does not explain half of its lateness, and that of a rank that stands out does, the
wait is attributed to that one. Where several stages share a collective, only the ranks of the last stage to arrive are
compared, because stages run different programs and arrive at different times.

The straggler is identified by its local time, step by step, from the last collective of one step to that of the next
(without a device, from the beginning of the step's range to its end, because Gloo's threads may end the range of a
collective only in the next step):

    local time = elapsed − exposed communication        excess = local time − median of its peers' local time

Peers are the other ranks with the same program (one pipeline stage). Ranks tied by collectives take equally long for
a step, but a rank that waits only has its device in a communication kernel; so ranks that are merely delayed have no
excess. A rank is identified as a straggler if its excess, or the excess of one part of its time, is larger than what
the other ranks show by chance: either lasting (its mean, in standard errors) or in some steps (more often than by
chance); the findings say which. Hosts stall at random, so a further measure is compared with the peers: the steady
time of a step, in which each place of the program counts with at most twice its usual time. Where hosts run ahead of
their devices, a rank can fall behind by chance and stay behind, so that its device is idle: it is identified only if
its host itself takes longer in the mean of these steps. Of a single complete step no host is judged (one hiccup looks
the same), and of two ranks no host is judged by fewer than four steps: record at least four. `saving_ns` is
what a step gains without its delay in a replay of the recorded steps (`whatif`), after the delays that cost more. A
rank without whose delay the step would be no shorter, because others are as late, is no straggler; if it is only
together with others, the finding names them. Where the replay is off by more than 5 %, cannot be made, or
has no peers of a rank, `saving_ns` is a bound: what a step gains if the rank takes no longer than the slowest of the
others, as if its collectives were at the step's end.
Stragglers that fill a slice of the mesh or a host with the same cause are one finding. A rank that is alone in its
stage is compared with its other steps and, by the kernels that other stages launch too, with these stages; so is a
stage whose ranks are all equally slow, if there are three stages or more. If the device of a rank alone in its stage
waits for data for 5 % of every step, that is a straggler, too.

If the run directory has the step log of the job (`rankscope run` writes one), that decides who is late: it has many
more steps, none of them recorded (`rankscope watch` judges them by the same engine). `least_delay_ns` is the least
delay that would have been significant: a rank that is not named delays the others by no more than that. With the log of
a job on the CPU it is at least 6 % of a step, by which cores of one machine may differ. A rank that is late in the
recorded steps and not in the log was so in passing. Without a log, two ranks in three steps are enough if one of them
is at a place in each step where the other hardly is: a stretch without events, a function, or a garbage collection of a
tenth of a step or more.

The cause is the part of its late steps that exceeds the peers':

- `slow_device`: the same kernels take longer; `more_work`: there are more, or larger ones (by name and launch grid; on
  the host operators by name and input shapes)
- `data_loading`: the device was idle while the host was in its data loader
- the host ran operators, the runtime, or nothing that was recorded, while the device was idle. What is longer than on
  the peers, by name (`host_items`), tells: `garbage_collection`; `descheduled`, if its thread waited for a core for
  three tenths of the excess, more than in its peers' proportion to what it ran (log); `code`, a function or line of the
  job (recorded stacks, or samples in the log), or one of its modules or `record_function` ranges, which are added to
  other names, too; `operators`; `pace`, if as many operators take longer by similar factors; `silent`, a stretch
  without events, given by what is before and after it; `slow_host`, if nothing has half of it, or if all operators of
  the same shapes take longer by one factor
- `memory`: the device was idle in allocations, or copied; calls for device memory that no other rank makes include the
  idle time that they cause on the device
- `slow_network` (a separate finding): a group moves its data slower than groups of the same kind, or than in its other
  steps; where single transfers vary several-fold, by the rank-sum test (Wilcoxon, Mann and Whitney)
- `unclear`: nothing explains half of it

Causes other than those of the host come first if they explain three tenths, because a late rank's host also lacks the
time in which the other hosts run ahead. Point-to-point operations are left out of lateness: in a pipeline a stage waits
for the previous one by design. In local time they count as communication like any other.

How to read it: the rank with the most `waited_ns` delays the others most; without a cause, its delay is not
significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from rankscope.primitives.arrival_skew import totals_by_rank_and_step
from rankscope.primitives.clocks import base_times
from rankscope.primitives.communicators import NAMED_BY, POINT_TO_POINT, named_group_ranks, parse_group_ranks
from rankscope.primitives.intervals import Int64
from rankscope.primitives.mesh import Mesh, infer_mesh, mesh_slices
from rankscope.primitives.statistics import Significance, Verdict
from rankscope.primitives.steps import distinct_steps
from rankscope.primitives.stragglers.causes import ADVICE, SHARED_CORES
from rankscope.primitives.stragglers.host_items import SCHEMA as ITEMS
from rankscope.primitives.stragglers.network import SlowLink, slow_links, with_numbers
from rankscope.primitives.stragglers.observations import observe
from rankscope.primitives.stragglers.paces import StepBounds, device_places, host_paces, step_paces
from rankscope.primitives.stragglers.rank_parts import concat_parts, local_times_of, narrow_parts
from rankscope.primitives.stragglers.step_log import StepLog
from rankscope.primitives.stragglers.stragglers import Comparison, Straggler
from rankscope.primitives.stragglers.timeline import (
    ENDED,
    PARTS,
    WAITING,
    cumulative_parts,
    cut_at_steps,
    programs_of,
    step_work,
)
from rankscope.primitives.stragglers.waits import SETTLED, attribute_waits, with_aligned_arrivals
from rankscope.primitives.stragglers.with_log import judged, of_log
from rankscope.results import (
    Analysis,
    Column,
    Evidence,
    Finding,
    Inputs,
    Parameter,
    Tables,
    by_window,
    incomplete_files,
    recorded_of,
    schema_of,
    together,
)
from rankscope.results.finding import TOGETHER_WITH
from rankscope.results.replays import replayed
from rankscope.rundir.plurals import counted
from rankscope.whatif.late_ranks import Saving, savings
from rankscope.whatif.run import LEAST_SHARE, ReplayedRun
from rankscope.whatif.scenarios import AsPeers, GroupAsOthers

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column(
        "step",
        pl.Int64,
        "",
        "the step; null unless `--by step`, which gives the values of each step instead of aggregates over steps",
    ),
    Column("window", pl.Int64, "", "index of the rank's trace file with the step, from 0; null unless `--by step`"),
    Column("lateness_ns", pl.Int64, "ns", "largest lateness in a step, mean over steps"),
    Column("waited_ns", pl.Int64, "ns", "time in which other ranks waited for it, over all steps"),
    Column(
        "last_share", pl.Float64, "ratio", "share of its collectives in which it arrived last by more than the residual"
    ),
    Column("steps", pl.Int64, "count", "steps in which it was compared"),
    Column("late_steps", pl.Int64, "count", "steps in which it arrived last by more than the residual"),
    Column(
        "significance",
        pl.String,
        "",
        "whether its local time is significantly longer than its peers': `significant`, `not significant` or `too few "
        "steps to tell`; null where it was not compared, as a rank that is alone in its pipeline stage",
    ),
    Column("verdict", pl.String, "", "the same with the test and the number of steps"),
    Column("cause", pl.String, "", "why it delays the other ranks; null where its delay is not significant"),
    Column("cause_ns", pl.Int64, "ns", "how much of its excess local time the cause explains, mean over steps"),
    Column("evidence", pl.String, "", "the numbers behind the cause"),
    Column("log_steps", pl.Int64, "count", "steps of the job's step log that decided whether it is late; null without"),
    Column(
        "least_delay_ns", pl.Int64, "ns", "the least delay per step that would be significant in the compared steps"
    ),
    Column(
        "steps_needed",
        pl.Int64,
        "count",
        "with so many steps that vary alike, a delay of a tenth of a step would be significant; null if not known",
    ),
    Column(
        "saving_ns",
        pl.Int64,
        "ns",
        "potential saving per step without its delay, after more costly ones; null: none alone, or not known",
    ),
    Column("fix", pl.String, "", "its delay, and that of ranks with the same, as a value of `whatif --fix`"),
)

_MOST_PEERS = 32
"""Of a late rank: with whom what it does is compared, by name."""
_CERTAINTY = ("rank", "log_steps", "least_delay_ns", "steps_needed")
EXCESS = "local time above its peers' median, mean over steps"
WAITED = "time other ranks waited for it, all steps together"
TOGETHER = "saved if they are"
EXCESS_LATE = "local time above its peers' median in its late steps, mean over all steps"
# The rows of all ranks take much memory: of a collective that they ran together, its ranks' rows have these in common.
_OF_COLLECTIVES = (
    "window", "step", "match", "group", "group_ranks", "group_size", "collective", "bytes", "transfer_ns",
)  # fmt: skip


def per_rank(tables: Tables, inputs: Inputs) -> dict[str, pl.DataFrame]:
    """What the rank had done by each matched collective, what its steps launched, and how its steps compare."""
    own = inputs.results["collectives"].filter(pl.col("rank") == inputs.rank)
    windows = enumerate(by_window(tables, inputs))
    return concat_parts([_of_window(w, own.filter(pl.col("window") == at), inputs, at) for at, w in windows])


def _of_window(window: Tables, own: pl.DataFrame, inputs: Inputs, number: int) -> dict[str, pl.DataFrame]:
    on_host = window["device_events"].is_empty()
    ended = np.sort(own["end_ns"].to_numpy())
    own = own.filter(pl.col("match").is_not_null() & ~pl.col("collective").is_in(POINT_TO_POINT))
    own = own.sort("start_ns", "end_ns")
    if on_host:
        own = cut_at_steps(own, window["annotations"])
        ended = np.sort(own["cut_ns"].to_numpy())
    else:
        own = own.with_columns(cut_ns="end_ns")
    end = own["cut_ns"].to_numpy()
    extra = inputs.options.communication
    at, code = device_places(window["device_events"], window["host_ops"], window["annotations"], extra)
    until = cumulative_parts(window, np.concatenate([end, at]), extra)
    by_end = {part: each[: end.size] for part, each in until.items()}
    collectives = own.select("match", "step", "start_ns", "end_ns", "cut_ns").with_columns(
        own.select(SETTLED.alias("settled")).to_series(),
        pl.Series("count", np.searchsorted(ended, end, side="right"), pl.Int64),
        pl.lit(on_host).alias("on_host"),
        *(pl.Series(name, by_end[part], pl.Int64) for name, part in zip(ENDED, PARTS, strict=True)),
    )
    of_rank = step_paces(at, code, at - until[WAITING][end.size :], _bounds(own, end, end - by_end[WAITING]))
    of_host = host_paces(window["host_ops"], window["runtime_calls"], window["annotations"])
    frames = {
        "collectives": collectives,
        "launched": step_work(window, extra),
        "paces": pl.concat([of_rank.with_columns(of_host=pl.lit(False)), of_host.with_columns(of_host=pl.lit(True))]),
    }
    return {
        name: frame.with_columns(rank=pl.lit(inputs.rank, pl.Int64), window=pl.lit(number, pl.Int64))
        for name, frame in frames.items()
    }


def _bounds(own: pl.DataFrame, end: Int64, end_own: Int64) -> StepBounds:
    """Step bounds, from the collectives that all recorded ranks of their group have."""
    whole = pl.col("matched_ranks") == pl.col("matched_ranks").max().over("group", "group_ranks")
    rows = own.select("step", whole.alias("whole"), pl.Series("end_ns", end), pl.Series("own_ns", end_own))
    return StepBounds.of(rows.filter("whole"))


def across_ranks(parts: Sequence[Mapping[str, pl.DataFrame]], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Who is late, whom it delays, and why."""
    ranks = sorted({info.rank for info in inputs.traces if info.rank is not None})
    recorded = inputs.distinct("collectives", "rank", "window", "step")
    shared = inputs.distinct("collectives", *_OF_COLLECTIVES)
    narrow, on_host = narrow_parts(together(parts), inputs.results["clock"], base_times(inputs.traces))
    named, (_, collectives, stretches, work, paces) = distinct_steps([recorded, shared, *narrow.values()])
    del narrow, recorded, shared
    cut = incomplete_files(inputs.traces)
    if cut.height:
        stretches, work, paces = (
            each.join(cut, on=["rank", "window"], how="anti", maintain_order="left")
            for each in (stretches, work, paces)
        )
    rows = with_aligned_arrivals(stretches)
    stretches = stretches.select("rank", "window", "match", "step")  # the others take much memory
    findings = _left_out(cut) if len({info.rank for info in inputs.traces}) > 1 else []
    if rows.is_empty():
        ranks = sorted({*ranks, *(inputs.log.verdicts if inputs.log is not None else ())})
        table = pl.DataFrame({"rank": ranks}, schema={"rank": pl.Int64})
        if inputs.log is None:
            return _complete(table), findings
        logged = of_log(inputs.log)
        table = _with_verdicts(table, logged, inputs.log.verdicts)
        table = table.join(_of_findings(logged), on="rank", how="left", maintain_order="left")
        table = _complete(table.join(_of_log(inputs.log), on="rank", how="left", maintain_order="left"))
        return table, [*_findings(logged, table, inputs), *findings]
    mesh = mesh_of(inputs)
    role = programs_of(mesh, inputs.distinct("collectives", "rank", "collective", "peers"))
    times = local_times_of(together(parts), stretches, collectives, cut)
    comparison = Comparison(observe(times, work, paces, role, on_host=on_host))
    table, by_step = totals_by_rank_and_step(ranks, attribute_waits(rows, role, collectives, comparison))
    links = with_numbers(slow_links(collectives, comparison.seen.step_ns), named)
    items = _items(comparison, inputs, work, named)
    stragglers, compared = judged(comparison, items, inputs.log)
    is_late = any(each is not None and each.significance is Significance.SIGNIFICANT for each in compared.values())
    run = _replayed(inputs) if stragglers or links or is_late else None
    sliced = with_numbers(comparison.by_slice(stragglers, mesh_slices(mesh)), named)
    late_in_log = {each.rank for each in inputs.log.late} if inputs.log is not None else set[int]()
    least_ns = max(comparison.limits.least_saving * comparison.seen.step_ns, 1)
    sliced = _costing(sliced, run, late_in_log, least_ns)
    costing = {rank for each in sliced for rank in each.ranks}
    stragglers = [each for each in stragglers if costing.issuperset(each.ranks)]
    too_few: dict[int, Verdict | None] = dict.fromkeys(rows["rank"].unique(), Verdict(Significance.TOO_FEW))
    table = _with_verdicts(table, stragglers, too_few | compared)
    savings_of = _of_findings(sliced)
    if run is not None:
        savings_of = pl.concat([savings_of, _of_others(run, compared, set(savings_of["rank"]))])
    table = table.join(savings_of, on="rank", how="left", maintain_order="left")
    table = table.join(_certainty(comparison, inputs), on="rank", how="left", maintain_order="left")
    findings = [*_findings(sliced, table, inputs), *_slow_networks(links, comparison, run), *findings]
    if inputs.parameters.get("by") == "step":
        table = _with_steps(by_step, comparison, stragglers)
        windows = stretches.drop_nulls("step").group_by("step").agg(pl.col("window").min())
        table = table.join(windows, on="step", how="left", maintain_order="left")
        table = table.with_columns(pl.col("step").replace(named))
    return _complete(table), findings


def _replayed(inputs: Inputs) -> ReplayedRun | None:
    """The run, if its replay explains the recorded steps."""
    run = replayed(inputs)
    return run if run is not None and run.fidelity.is_judged else None


def _fix(straggler: Straggler) -> AsPeers:
    """Its ranks like their peers: in the steps in which they are late, if these are not all."""
    return AsPeers(straggler.ranks, "", () if straggler.lasting else tuple(sorted(set(straggler.steps))))


def _costing(found: Sequence[Straggler], run: ReplayedRun | None, logged: Set[int], least_ns: float) -> list[Straggler]:
    """The stragglers that cost something, the most costly first.

    The replay tells by how much the step is shorter without their delay. Where it cannot, what the engine says is a
    bound; of a rank that is late in the log, the recorded steps need not show it.

    Args:
        found: the ranks that stand out.
        run: the run, if its replay explains it.
        logged: ranks that are late in the log.
        least_ns: the smallest saving of a straggler.
    """
    gained = _gained([each for each in found if not each.is_past], run) if run is not None else {}
    costing = []
    for each in found:
        saving = gained.get(id(each))
        if saving is not None:
            ns, too_ns = round(saving.ns) or None, round(saving.together_ns) or None
            costing.append(replace(each, saving_ns=ns, together_with=saving.together_with, together_ns=too_ns))
            continue
        bounded = id(each) not in gained and (each.together_with or (each.saving_ns or 0) >= least_ns)
        if bounded or each.is_past or not logged.isdisjoint(each.ranks):
            costing.append(each)
    return sorted(costing, key=lambda each: (-(each.saving_ns or 0), -each.excess_ns))


def _gained(found: Sequence[Straggler], run: ReplayedRun) -> dict[int, Saving | None]:
    """By id of a straggler what it costs, where the run can tell."""
    answerable = run.answerable(list(map(_fix, found)))
    by_scenario = dict(zip(answerable, savings(run, answerable), strict=True))
    return {id(each): by_scenario[fix] for each in found if (fix := _fix(each)) in by_scenario}


def _of_findings(found: Sequence[Straggler]) -> pl.DataFrame:
    """What each rank's finding saves, and how to ask for it."""
    rows = [
        (rank, each.saving_ns, _fix(each).option.removeprefix("--fix "))
        for each in found
        if not each.is_past
        for rank in each.ranks
    ]
    schema = {name: schema_of(COLUMNS)[name] for name in ("rank", "saving_ns", "fix")}
    return pl.DataFrame(rows, schema=schema, orient="row").unique("rank", keep="first", maintain_order=True)


def _of_others(run: ReplayedRun, verdicts: Mapping[int, Verdict | None], named: Set[int]) -> pl.DataFrame:
    """What ranks cost that are significantly late for no cause that the traces show."""
    late = [rank for rank, verdict in verdicts.items() if verdict and verdict.significance is Significance.SIGNIFICANT]
    gains = {rank: run.gain([AsPeers((rank,))]) for rank in late if rank not in named}
    rows = [(rank, round(ns), None) for rank, ns in gains.items() if ns and ns >= LEAST_SHARE * run.step_ns]
    return pl.DataFrame(rows, schema=_of_findings([]).schema, orient="row")


def _items(comparison: Comparison, inputs: Inputs, work: pl.DataFrame, named: Mapping[int, int]) -> pl.DataFrame:
    """What the hosts of late ranks and of some peers of theirs did, by name.

    Args:
        work: window, step (its number among all windows).
        named: the original number of each, where they differ.
    """
    late = {int(comparison.seen.ranks[each.row]) for each in comparison.late}
    if not late and comparison.seen.enough:
        # The one with the largest excess may be late at one place in each of a few steps.
        total = np.nan_to_num(comparison.excess).sum(axis=1)
        late = {int(comparison.seen.ranks[total.argmax()])}
    if inputs.log is not None:
        late |= {each.rank for each in inputs.log.late}
    ranks = late & set(comparison.seen.ranks.tolist())
    ranks |= {peer for rank in sorted(ranks) for peer in comparison.peers(rank)[:_MOST_PEERS]}
    numbers = work.select("window", "step").unique()
    numbers = numbers.with_columns((pl.col("step").replace(named) if named else pl.col("step")).alias("original"))
    rows = inputs.rows_of("host_items", ranks)
    if rows is None:
        return pl.DataFrame(schema={"rank": pl.Int64, **ITEMS})
    rows = rows.rename({"step": "original"})
    return rows.join(numbers, on=["window", "original"]).drop("original")


def _certainty(comparison: Comparison, inputs: Inputs) -> pl.DataFrame:
    """By rank, what the compared steps would show: those of the log where it decided, of the traces otherwise."""
    log, step_ns, limits = inputs.log, comparison.seen.step_ns, comparison.limits
    rows: list[tuple[int, int | None, int | None, int | None]] = []
    for row, rank in enumerate(comparison.seen.ranks.tolist()):
        least, steps = float(comparison.least_delays[row]), int(np.isfinite(comparison.excess[row]).sum())
        if not step_ns or not math.isfinite(least):
            rows.append((rank, None, None, None))
            continue
        # A standard error falls with the root of the number of steps.
        needed = math.ceil(steps * (least / (limits.wanted * step_ns)) ** 2)
        rows.append((rank, None, round(least), needed))
    found = pl.DataFrame(rows, schema={name: schema_of(COLUMNS)[name] for name in _CERTAINTY}, orient="row")
    if log is None:
        return found
    logged = _of_log(log)
    return pl.concat([logged, found.join(logged, on="rank", how="anti", maintain_order="left")])


def _of_log(log: StepLog) -> pl.DataFrame:
    """The same where the log decided."""
    # Where its times vary too much to tell, they still say how large a delay would show.
    known = log.least_delay_ns is not None
    decided = [rank for rank, each in log.verdicts.items() if known or each.significance is not Significance.TOO_FEW]
    rows = [(rank, log.steps, log.least_delay_ns, None) for rank in decided]
    return pl.DataFrame(rows, schema={name: schema_of(COLUMNS)[name] for name in _CERTAINTY}, orient="row")


def _left_out(cut: pl.DataFrame) -> list[Finding]:
    ranks = tuple(cut["rank"].unique().sort())
    if not ranks:
        return []
    title = "Ranks with incomplete traces are left out of the comparison"
    return [Finding(id="not-judged", severity="info", title=title, ranks=ranks)]


def mesh_of(inputs: Inputs) -> Mesh:
    """The mesh of a run, from its metadata or its groups."""
    return infer_mesh(inputs.traces, named_group_ranks(inputs.distinct("collectives", *NAMED_BY)))


def _complete(table: pl.DataFrame) -> pl.DataFrame:
    """All columns in order; missing ones are null."""
    return table.select(
        pl.col(name) if name in table.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema_of(COLUMNS).items()
    )


def _with_steps(by_step: pl.DataFrame, comparison: Comparison, stragglers: Sequence[Straggler]) -> pl.DataFrame:
    """Each rank in each step; causes in the steps in which it is an outlier."""
    schema = {"rank": pl.Int64, "step": pl.Int64, "cause": pl.String, "cause_ns": pl.Int64, "evidence": pl.String}
    late: list[tuple[int, int, str, int, str]] = []
    for each in stragglers:
        row, share, why = int(np.searchsorted(comparison.seen.ranks, each.ranks[0])), each.cause.share, each.cause
        for column in np.flatnonzero(comparison.is_late[row]):
            taken = comparison.excess[row, column]
            explained = round(taken * share) if np.isfinite(taken) else 0
            late.append((each.ranks[0], int(comparison.seen.steps[column]), why.cause, explained, why.evidence))
    found = pl.DataFrame(late, schema=schema, orient="row")
    return by_step.join(found, on=["rank", "step"], how="left", maintain_order="left")


def _with_verdicts(
    table: pl.DataFrame, stragglers: Sequence[Straggler], verdicts: Mapping[int, Verdict | None]
) -> pl.DataFrame:
    """The ranks with the causes of the stragglers, and whether each is significantly late."""
    of_rows = [verdicts.get(rank) for rank in table["rank"]]
    return _with_causes(table, [each for each in stragglers if not each.is_past]).with_columns(
        pl.Series("significance", [each and each.significance.value for each in of_rows], dtype=pl.String),
        pl.Series("verdict", [each and str(each) for each in of_rows], dtype=pl.String),
    )


def _with_causes(table: pl.DataFrame, stragglers: Sequence[Straggler]) -> pl.DataFrame:
    """The measures with the causes."""
    schema = {"rank": pl.Int64, "cause": pl.String, "evidence": pl.String, "cause_ns": pl.Int64}
    rows = [
        (each.ranks[0], each.cause.cause, each.cause.evidence, round(each.excess_ns * each.cause.share))
        for each in stragglers
    ]
    found = pl.DataFrame(rows, schema=schema, orient="row").unique("rank", keep="last")
    return table.join(found, on="rank", how="left", maintain_order="left")


def _findings(found: Sequence[Straggler], table: pl.DataFrame, inputs: Inputs) -> list[Finding]:
    """Ranks, or slices of the mesh, that delay the others."""
    rows = {row["rank"]: row for row in table.iter_rows(named=True)}
    findings = []
    for each in found:
        mine = [rows[rank] for rank in each.ranks if rank in rows]
        cause = each.cause.cause
        findings.append(
            Finding(
                id="stall" if each.is_past else "straggler",
                severity="warning" if each.lasting and not each.is_past else "info",
                title=each.title,
                ranks=each.ranks,
                steps=() if each.lasting else tuple(dict.fromkeys(each.steps)),
                evidence=(
                    Evidence(_excess_name(each), each.excess_ns, "ns"),
                    *_largest("largest lateness per step, mean", "lateness_ns", mine),
                    *_largest(WAITED, "waited_ns", mine),
                    Evidence("steps in which it is late", each.late_steps, "count"),
                    Evidence("steps compared", each.compared, "count"),
                    Evidence("significance test", f"{each.verdict.test}, {counted(each.compared, 'step')}"),
                    *_to_be_fixed_too(each),
                    Evidence(f"cause: {cause.replace('_', ' ')}", each.cause.evidence),
                    *_longer(each),
                ),
                # It may gain nothing, for another rank is as slow; and what happened once need not come again.
                saving_ns=None if each.is_past else each.saving_ns or None,
                cost_ns=None if each.is_past else each.together_ns,
                advice=each.cause.what_to_do(recorded_of(inputs.traces, each.ranks)),
            )
        )
    return findings


def _largest(name: str, column: str, rows: Sequence[Mapping[str, Any]]) -> list[Evidence]:
    """The largest of the values that are known: a rank may be known from the log alone."""
    known = [row[column] for row in rows if row[column] is not None]
    return [Evidence(name, max(known), "ns")] if known else []


def _excess_name(straggler: Straggler) -> str:
    return EXCESS if straggler.lasting and not straggler.hidden else EXCESS_LATE


def _longer(straggler: Straggler) -> list[Evidence]:
    longer = straggler.cause.longer
    return [Evidence("longer than on its peers, per late step that is recorded", "; ".join(longer))] if longer else []


def _to_be_fixed_too(straggler: Straggler) -> list[Evidence]:
    if not straggler.together_with:
        return []
    found = [Evidence(TOGETHER_WITH, ", ".join(map(str, straggler.together_with)))]
    if straggler.together_ns:
        found.append(Evidence(TOGETHER, straggler.together_ns, "ns"))
    return found


def _slow_networks(links: Sequence[SlowLink], comparison: Comparison, run: ReplayedRun | None) -> list[Finding]:
    """Groups that move the same data slower than comparable groups."""
    steps = max(comparison.seen.steps.size, 1)
    advice = SHARED_CORES if comparison.seen.on_host else ADVICE["slow_network"]
    findings = []
    for link in links:
        than = "comparable groups" if link.groups else "in its other steps"
        when = "" if link.lasting else " in some steps"
        ranks = (parse_group_ranks(link.group_ranks) or ()) if link.group_ranks else ()
        saving = link.excess_ns // steps
        gain = run.gain([GroupAsOthers(ranks)]) if run is not None else None
        if gain is not None:
            saving = min(saving, round(gain))
        findings.append(
            Finding(
                id="slow-network",
                severity="warning" if link.lasting else "info",
                title=f"Group {link.group} transfers data slower than {than}{when}",
                ranks=ranks,
                steps=() if link.lasting else tuple(dict.fromkeys(link.steps)),
                evidence=(
                    Evidence("transfers are slower by", link.excess_ns, "ns"),
                    Evidence("expected transfer time", link.expected_ns, "ns"),
                    Evidence("groups it is compared with", link.groups, "count"),
                ),
                saving_ns=max(saving, 0) or None,
                advice=advice,
            )
        )
    return findings


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
    requires=("collectives", "clock", "segments"),
    parameters=(Parameter("by", "what to group rows by", default="rank", choices=("rank", "step"), of_reduce=True),),
    has_findings=True,
    reads_log=True,
    shown_empty=True,
)
