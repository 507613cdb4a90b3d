"""What of the difference of two steps is what: the gains of the same scenarios in both runs, by their replays.

In: two runs. Out: rows for a diff, which add up from one step to the other; or why there are none.
"""

from __future__ import annotations

import polars as pl

from rankscope.engine.pipeline import Run
from rankscope.results import Column, schema_of
from rankscope.whatif.gains import in_order
from rankscope.whatif.options import options_in, scenarios_in
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.scenarios import WITHOUT, AsPeers, GroupAsOthers, Overlapped, Scenario, Without

SAVINGS = "savings"
REMAINS = "what remains"


def savings(a: Run, b: Run, columns: tuple[Column, ...]) -> tuple[pl.DataFrame, str]:
    """What each scenario gains per step in both runs, after those before it, and what remains of the step, ns.

    First come the ranks and groups that either run's waterfall names, then what all ranks do. So the changes add up to
    the difference of the replayed steps.

    Args:
        a: the first run.
        b: the second.
        columns: of a diff.

    Returns:
        The rows, and why there are none.
    """
    empty = pl.DataFrame(schema=schema_of(columns))
    runs: list[ReplayedRun] = []
    named: list[Scenario] = []
    for label, run in (("A", a), ("B", b)):
        table = run.attempt("whatif").get("whatif")
        replayed = run.replayed() if table is not None else None
        if table is None or replayed is None:
            return empty, f"{label} cannot be replayed"
        if not replayed.fidelity.is_judged:
            return empty, f"the replay of {label} explains {replayed.fidelity.explained:.0%} of its step"
        runs.append(replayed)
        named += _named(table.frame)
    wanted = [*dict.fromkeys(named), *map(Without, WITHOUT), Overlapped()]
    answerable = [run.answerable(wanted) for run in runs]
    common = [each for each in wanted if all(each in of_run for of_run in answerable)]
    gains = [[gain.gain_ns or 0.0 for gain in in_order(run, common)] for run in runs]
    ends = [run.step_ns - sum(of_run) for run, of_run in zip(runs, gains, strict=True)]
    rows = [(each.name, *pair) for each, *pair in zip(common, *gains, strict=True)]
    rows = [row for row in rows if any(round(value) for value in row[1:])]
    rows.sort(key=lambda row: -abs(row[2] - row[1]))
    frame = pl.DataFrame([*rows, (REMAINS, *ends)], schema=["name", "a", "b"], orient="row")
    change = pl.col("b") - pl.col("a")
    filled = frame.with_columns(
        section=pl.lit(SAVINGS),
        method=pl.lit("name"),
        unit=pl.lit("ns"),
        change=change,
        change_ratio=pl.when(pl.col("a") > 0).then(change / pl.col("a")),
        a_samples=pl.lit(runs[0].steps.index.size),
        b_samples=pl.lit(runs[1].steps.index.size),
    )
    return pl.concat([empty, filled], how="diagonal_relaxed"), ""


def _named(table: pl.DataFrame) -> list[Scenario]:
    """The ranks and groups in a run's waterfall: of ranks the component that gains most, in all steps."""
    found: list[Scenario] = []
    for command, component in table.filter(pl.col("order") > 0).select("command", "component").iter_rows():
        [scenario] = scenarios_in(options_in(command))
        if isinstance(scenario, AsPeers):
            found.append(AsPeers(scenario.ranks, component or scenario.component))
        elif isinstance(scenario, GroupAsOthers):
            found.append(scenario)
    return found
