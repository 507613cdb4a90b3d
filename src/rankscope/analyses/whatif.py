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
- all transfers overlap with compute: nothing waits for the end of a transfer but the next one on its
  stream; late ranks are waited for
- the host needs no time to launch, never waits for its device, makes no calls for memory, loads no data; no copies:
  bounds, not promises
- larger buckets: successive all-reduces of a group, as of DDP's gradients, become one, which starts with the last of
  them; its transfer takes as long as theirs, less a latency for each that is saved, fitted to the group's transfers by
  size. Of smaller ones nothing is known: a trace does not record when the parts of a bucket are ready
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

from rankscope.results import Analysis, Column, Finding, Headline, Inputs, Parameter, schema_of
from rankscope.results.replays import replayed
from rankscope.rundir.ranges import named_ranks
from rankscope.whatif.gains import Gain, candidates, in_order, waterfall
from rankscope.whatif.options import FIX, command_of, scenarios_of
from rankscope.whatif.scenarios import WITHOUT, AsPeers
from rankscope.whatif.step_times import LARGEST_ERROR, Fidelity

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


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Replay the run as recorded, and with each scenario."""
    scenarios = scenarios_of(inputs.parameters)
    ranks, run = inputs.distinct("segments", "rank")["rank"].to_list(), replayed(inputs)
    recorded = {info.rank for info in inputs.traces if info.rank is not None}
    without = _without(sorted(recorded - set(ranks))) if ranks else None
    if not ranks:
        return _refused(_joined("no step, collective or launch of recorded work to replay", without)), []
    if run is None:
        return _refused(_joined("no step was recorded by most of the ranks", without)), []
    for scenario in scenarios:
        run.changed([scenario])  # an error names the option
    gains: Sequence[Gain] = []
    if run.fidelity.is_judged:
        gains = in_order(run, scenarios) if scenarios else waterfall(run, candidates(run, _late(inputs)))
    return _table(run.fidelity, gains, _joined(run.note, without)), []


def _late(inputs: Inputs) -> list[AsPeers]:
    """The ranks that `stragglers` names: that others are slower is not significant."""
    options = inputs.columns("stragglers", "fix").drop_nulls()["fix"].unique(maintain_order=True)
    return [each for option in options for each in scenarios_of({"fix": option}) if isinstance(each, AsPeers)]


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
            command_of(gain.scenario),
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


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


def _without(ranks: Sequence[int]) -> str | None:
    return f"without {named_ranks(ranks)}: no collective links their clocks" if ranks else None


def _refused(reason: str | None) -> pl.DataFrame:
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
    across_ranks=across_ranks,
    headline=headline,
    requires=("segments", "stragglers"),
    parameters=(
        Parameter("fix", f"ranks or groups that become like others: {FIX}; several with `;`", of_reduce=True),
        *(Parameter(f"no_{what}", text, kind="flag", default=False, of_reduce=True) for what, text in WITHOUT.items()),
        Parameter("buckets", "make all-reduce buckets so many times as large: 2x", of_reduce=True),
        Parameter("network", "make the network so many times as fast: 2x", of_reduce=True),
        Parameter("overlap", "all transfers overlap with compute", kind="flag", default=False, of_reduce=True),
        Parameter("balance", "share compute equally over ranks, stages or both: ranks,stages", of_reduce=True),
    ),
)

__all__ = ["AS_RECORDED", "LARGEST_ERROR", "analysis"]
