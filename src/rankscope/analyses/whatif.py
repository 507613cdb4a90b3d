"""What if: the step time without a straggler, with a faster network, with balanced work, and so on.

A replay of the job: each rank's host and device go through the segments between their collectives, a collective ends
when its last rank has arrived and its data is transferred, and nothing starts before what it waits for has ended. With
the recorded durations the replay gives the recorded step again; with others it gives the step that they would make.

    host     H = H + h                           h: the host's time in a segment, by part, without waiting
    device   D = max(D + d, H + a + b)           d: the device's time; a: host until a launch, b: device from there
    collective  end = max over ranks of (arrival) + transfer, arrival after both H and D
    waits    D, or H, becomes the end of what it waits for

What a stream waits for is not recorded; it is inferred from kernels that start just as a collective ends. The transfer
is the shortest duration on any rank.

`gain_alone_ns` is what one scenario alone saves per step. The waterfall adds one scenario after another (`order`), and
`gain_ns` is what it saves after those before it: so these gains never add up to more than the step. First come the
ranks that `stragglers` names and groups that transfer more slowly than comparable ones, in the order of their gains,
until none gains 1 % of the step (several that gain only together are one scenario); then what all ranks do. Options
choose other scenarios, in any combination, in the order in which `--help` lists them.

- a rank like its peers: in components in which it takes longer than the mean of the other ranks with its program, it
  takes as long, at each place of the program; what varies from step to step stays
- all transfers overlap with compute: nothing waits for a transfer before the step ends; late ranks are waited for
- the host needs no time to launch, never waits for its device, makes no calls for memory, loads no data; no copies:
  bounds, not promises
- compute balanced: the same total of compute, shared equally in each step by ranks with one program, or by the stages
  of a pipeline

How to read it: trust the table as far as the replay explains the recording. `explained` and `largest_error` give its
error; where it explains less than 95 % of the mean step nothing is claimed, and `note` gives the reason. A step is
measured from the end of the step before to its own end, over all ranks; a file's first step, whose beginning is not
recorded, counts only if there is no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from rankscope.primitives.clocks import base_times
from rankscope.primitives.communicators import NAMED_BY, named_group_ranks
from rankscope.primitives.mesh import infer_mesh
from rankscope.primitives.stragglers.timeline import programs_of
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Finding,
    Headline,
    Inputs,
    Parameter,
    Tables,
    by_window,
    concat_ranks,
    schema_of,
)
from rankscope.rundir.plurals import counted
from rankscope.rundir.ranges import named_ranks
from rankscope.whatif.gains import Gain, candidates, in_order, waterfall
from rankscope.whatif.graph import Graph, graph_of
from rankscope.whatif.moments import SCHEMA, moments
from rankscope.whatif.options import FIX, scenarios_of
from rankscope.whatif.replayed_run import ReplayedRun
from rankscope.whatif.scenarios import WITHOUT, costs_of
from rankscope.whatif.step_times import LARGEST_ERROR, Fidelity, Steps, fidelity

AS_RECORDED = "as recorded"
COLUMNS = (
    Column("order", pl.Int64, "", "the scenario's place in the waterfall; 0: the recorded step; null: not in it"),
    Column("scenario", pl.String, "", "what is different"),
    Column("step_ns", pl.Int64, "ns", "the step with it and those before it in the waterfall; as recorded: replayed"),
    Column("gain_ns", pl.Int64, "ns", "by how much that is shorter than without it"),
    Column("alone_ns", pl.Int64, "ns", "the step with it alone; as recorded: recorded"),
    Column("gain_alone_ns", pl.Int64, "ns", "by how much that is shorter than the step as replayed"),
    Column(
        "component",
        pl.String,
        "",
        "of ranks: where most of the gain is: `compute`, `copies`, `data_loading`, `allocation` or `host`",
    ),
    Column("command", pl.String, "", "how to ask for it alone; null for the recorded step"),
    Column("explained", pl.Float64, "ratio", "how much of the recorded mean step the replay explains"),
    Column("largest_error", pl.Float64, "ratio", "the replay's largest error of a step"),
    Column("steps", pl.Int64, "count", "steps that were replayed"),
    Column("note", pl.String, "", "what limits the answer, or why there is none"),
)
_ROWS = (*RANK_AND_WINDOW, *(Column(name, dtype, "", "") for name, dtype in SCHEMA.items()))
_INSTANTS = ("at_ns", "start_ns", "end_ns")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The moments of the rank's files."""
    own = inputs.results["collectives"].filter(pl.col("rank") == inputs.rank)
    parts = [
        moments(window, own.filter(pl.col("window") == number), inputs.options.communication).with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.lit(number, pl.Int64).alias("window")
        )
        for number, window in enumerate(by_window(tables, inputs))
    ]
    return concat_ranks(parts, _ROWS)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Replay the run as recorded, and with each scenario."""
    scenarios = scenarios_of(inputs.parameters)
    run = replayed_run(parts, inputs)
    if isinstance(run, str):
        return _refused(run), []
    graph, steps = run.graph, run.steps
    for scenario in scenarios:
        costs_of(graph, [scenario])  # an error names the option
    gains: Sequence[Gain] = []
    if run.fidelity.is_judged and scenarios:
        gains = in_order(graph, steps, scenarios)
    elif run.fidelity.is_judged:
        gains = waterfall(graph, steps, candidates(graph, _late(inputs)))
    return _table(run.fidelity, gains, run.note), []


def replayed_run(parts: Sequence[pl.DataFrame], inputs: Inputs) -> ReplayedRun | str:
    """The run as a graph, replayed as recorded; or why it cannot be.

    Args:
        parts: of `per_rank`.
        inputs: those of `across_ranks`.
    """
    rows, left_out = _on_one_clock(concat_ranks(parts, _ROWS), inputs)
    if rows.is_empty():
        return "; ".join(["no step, collective or launch of recorded work to replay", *_without(left_out)])
    mesh = infer_mesh(inputs.traces, named_group_ranks(inputs.distinct("collectives", *NAMED_BY)))
    roles = programs_of(mesh, inputs.distinct("collectives", "rank", "collective", "peers"))
    graph = graph_of(rows, roles)
    steps = Steps.of(graph, _chosen(inputs))
    if not steps.index.size:
        return "; ".join(["no step was recorded by most of the ranks", *_without(left_out)])
    replayed = fidelity(graph, steps)
    return ReplayedRun(graph, steps, replayed, _notes(replayed, graph, left_out))


def _late(inputs: Inputs) -> set[int]:
    """The ranks that `stragglers` names: that the others are slower is not significant."""
    return set(inputs.columns("stragglers", "rank", "cause").filter(pl.col("cause").is_not_null())["rank"].to_list())


def _chosen(inputs: Inputs) -> _InRange:
    return _InRange(*(inputs.options.steps or (None, None)))


class _InRange:
    """Whether a step is between two numbers; None leaves a side open."""

    def __init__(self, first: int | None, last: int | None) -> None:
        self._first, self._last = first, last

    def __call__(self, step: int) -> bool:
        return (self._first is None or step >= self._first) and (self._last is None or step <= self._last)


def _on_one_clock(rows: pl.DataFrame, inputs: Inputs) -> tuple[pl.DataFrame, list[int]]:
    """The moments of ranks whose clocks are linked, on one clock that begins with the first; and the other ranks."""
    clock = inputs.results["clock"].select(
        "rank", "offset_ns", "drift_ppm", pl.col("at_ns").alias("clock_ns"), "component"
    )
    base = base_times(inputs.traces)
    rows = rows.join(base, on=["rank", "window"], how="left").join(clock, on="rank", how="left", maintain_order="left")
    ranks = rows.select("rank", "component").unique()
    largest = ranks["component"].drop_nulls().value_counts(sort=True, name="ranks")
    if largest.height:
        rows = rows.filter(
            pl.col("component") == largest.sort("ranks", "component", descending=[True, False])["component"][0]
        )
    left_out = sorted(set(ranks["rank"].to_list()) - set(rows["rank"].unique().to_list()))
    wall = pl.col("base_ns").fill_null(0)
    middle = pl.col("at_ns").median().over("rank", "window").cast(pl.Int64) + wall
    drift = ((middle - pl.col("clock_ns")) * pl.col("drift_ppm").fill_null(0.0) * 1e-6).round().cast(pl.Int64)
    rows = rows.with_columns((wall + pl.col("offset_ns").fill_null(0) + drift.fill_null(0)).alias("shift"))
    origin = rows.select((pl.col("at_ns") + pl.col("shift")).min()).item() or 0
    rows = rows.with_columns(pl.col(name) + pl.col("shift") - origin for name in _INSTANTS)
    return rows.select(column.name for column in _ROWS), left_out


def _table(replayed: Fidelity, gains: Sequence[Gain], note: str | None) -> pl.DataFrame:
    step = replayed.replayed.mean()
    rows: list[tuple[object, ...]] = [
        (0, AS_RECORDED, round(step), None, round(replayed.recorded_ns), None, None, None)
    ]
    rows += [
        (
            gain.place or None,
            gain.scenario.name,
            None if gain.step_ns is None else round(gain.step_ns),
            None if gain.gain_ns is None else round(gain.gain_ns),
            round(gain.alone_ns),
            round(gain.gain_alone_ns),
            gain.component or None,
            f"whatif RUN {gain.scenario.option}",
        )
        for gain in gains
    ]
    frame = pl.DataFrame(rows, schema=schema_of(COLUMNS[: len(rows[0])]), orient="row")
    about = (replayed.explained, float(replayed.errors.max()), int(replayed.recorded.size), note)
    first = pl.col("order") == 0
    return frame.with_columns(
        pl.when(first).then(pl.lit(value, column.dtype)).alias(column.name)
        for column, value in zip(COLUMNS[-len(about) :], about, strict=True)
    )


def _notes(replayed: Fidelity, graph: Graph, left_out: Sequence[int]) -> str | None:
    """What limits the answer."""
    notes = [replayed.reason] if replayed.reason else []
    if graph.dropped:
        notes.append(f"{counted(graph.dropped, 'wait')} left out that contradict the order of others")
    return "; ".join([*notes, *_without(left_out)]) or None


def _without(ranks: Sequence[int]) -> list[str]:
    return [f"without {named_ranks(ranks)}: no collective links their clocks"] if ranks else []


def _refused(reason: str) -> pl.DataFrame:
    """The recorded step alone, with the reason."""
    row = {"order": 0, "scenario": AS_RECORDED, "note": reason}
    return pl.DataFrame([row], schema=schema_of(COLUMNS))


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    in_waterfall = frame.filter(pl.col("order").is_not_null()).sort("order")
    recorded = in_waterfall.row(0, named=True)
    if recorded["explained"] is None:
        return Headline.of("The run cannot be replayed: {reason}.", reason=(recorded["note"] or "unknown", ""))
    if recorded["explained"] < 1 - LARGEST_ERROR:
        text = "The replay explains {explained} of the step: what changes would save is not judged ({reason})."
        reason = (recorded["note"] or "unknown", "")
        return Headline.of(text, explained=(recorded["explained"], "ratio"), reason=reason)
    if in_waterfall.height < 2:
        text = "No scenario shortens the step of {step}, of which the replay explains {explained}."
        return Headline.of(text, step=(recorded["alone_ns"], "ns"), explained=(recorded["explained"], "ratio"))
    first, last = in_waterfall.row(0, named=True), in_waterfall.row(-1, named=True)
    best = in_waterfall.row(1, named=True)
    values: Mapping[str, tuple[int | float | str, str]] = {
        "step": (first["alone_ns"], "ns"),
        "explained": (first["explained"], "ratio"),
        "scenario": (best["scenario"], ""),
        "first": (best["step_ns"], "ns"),
    }
    text = "The step of {step}, of which the replay explains {explained}, would take {first} with: {scenario}"
    if in_waterfall.height == 2:
        return Headline.of(text + ".", **values)
    return Headline.of(text + "; with all of the waterfall {last}.", **values, last=(last["step_ns"], "ns"))


analysis = Analysis(
    name="whatif",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    headline=headline,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    requires=("collectives", "clock", "stragglers"),
    parameters=(
        Parameter("fix", f"ranks or groups that become like others: {FIX}; several with `;`", of_reduce=True),
        *(Parameter(f"no_{what}", text, kind="flag", default=False, of_reduce=True) for what, text in WITHOUT.items()),
        Parameter("network", "make the network so many times as fast: 2x", of_reduce=True),
        Parameter("overlap", "all transfers overlap with compute", kind="flag", default=False, of_reduce=True),
        Parameter("balance", "share compute equally over ranks, stages or both: ranks,stages", of_reduce=True),
    ),
)

__all__ = ["AS_RECORDED", "LARGEST_ERROR", "analysis", "replayed_run"]
