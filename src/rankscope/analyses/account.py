"""What became of all that was recorded: no event, launch or nanosecond is without an owner.

One row per rank, over all of its files:

    events   = in_tables + skipped
    launches = with a device event + lost_launches
    window   = compute + exposed communication + exposed copies and fills + idle
    idle     = data loading + calls into the runtime + operators + unexplained

`skipped` are events of which no table has a row, or whose category no analysis reads; `reasons` names them.
`no_duration` are rows without a duration: they end when they begin, and their time is missing. Windows are the recorded
steps, as in `step_time`; `unexplained_ns` is its `other_ns`: the device was idle, and the host recorded nothing.

A rank is `clean` if it has events, at most 1 % of its timed events were skipped or have no duration, its files end
where they should, and its launches have their device events: all but 1 %, or two.

How to read it: of a rank that is not clean, figures may be wrong by as much as is missing. Much unexplained time:
record stacks (`with_stack=True`), or look for what sleeps or waits outside of torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import polars as pl

from rankscope.primitives.activity import BUSY, IDLE
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, total_of
from rankscope.rundir.plurals import counted, plural
from rankscope.store.account import Account
from rankscope.store.trace_info import TraceInfo

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("files", pl.Int64, "count", "its trace files, without memory snapshots"),
    Column("clean", pl.Boolean, "", "whether too little is missing to change figures"),
    Column(
        "events", pl.Int64, "count", "events in its files, with those that cannot be read as far as they can be counted"
    ),
    Column("in_tables", pl.Int64, "count", "events in tables; a begin and its end are one row"),
    Column("skipped", pl.Int64, "count", "events that are in no table that analyses read"),
    Column("no_duration", pl.Int64, "count", "ranges in tables whose duration is missing"),
    Column("reasons", pl.String, "", "what was skipped: reasons with numbers; null without any"),
    Column("launches", pl.Int64, "count", "calls that launch kernels or graphs"),
    Column("lost_launches", pl.Int64, "count", "those without a device event"),
    Column("device_events", pl.Int64, "count", "kernels, copies and fills"),
    Column("unlaunched", pl.Int64, "count", "those whose launch is not in the file: it was before, or is not recorded"),
    Column("window_ns", pl.Int64, "ns", "its steps' windows together; null without any"),
    Column("idle_ns", pl.Int64, "ns", "time in them in which nothing runs on the device; null if too much is missing"),
    Column("unexplained_ns", pl.Int64, "ns", "of it, time in which the host recorded nothing either"),
    Column("unassigned_ns", pl.Int64, "ns", "the windows minus all of their parts: 0"),
)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """One row per rank."""
    files: dict[int | None, list[TraceInfo]] = defaultdict(list)
    for info in inputs.traces:
        if not info.is_snapshot:
            files[info.rank].append(info)
    rows = [_row(rank, infos) for rank, infos in files.items()]
    counts = pl.DataFrame(rows, schema={c.name: c.dtype for c in COLUMNS if not c.name.endswith("_ns")}, strict=False)
    # Null where a part is: then what a step was spent on is not known.
    idle, busy = (pl.sum_horizontal(parts, ignore_nulls=False) for parts in (IDLE, BUSY))
    times = (
        inputs.results["step_time"]
        .group_by("rank")
        .agg(
            pl.col("window_ns").sum(),
            *(
                pl.when(value.is_not_null().all()).then(value.sum()).alias(name)
                for name, value in (
                    ("idle_ns", idle),
                    ("unexplained_ns", pl.col("other_ns")),
                    ("unassigned_ns", pl.col("window_ns") - busy - idle),
                )
            ),
        )
    )
    return counts.join(times, on="rank", how="left").select(column.name for column in COLUMNS).sort("rank"), []


def _row(rank: int | None, infos: Sequence[TraceInfo]) -> dict[str, object]:
    account = Account.of(info.account for info in infos)
    skipped = account.skipped
    return {
        "rank": rank,
        "files": len(infos),
        "clean": account.is_clean and not any(info.truncated or info.is_empty for info in infos),
        "events": account.events,
        "in_tables": sum(account.tables.values()) + account.ends,
        "skipped": sum(account.unread.values()) + sum(account.unknown.values()),
        "no_duration": account.no_duration,
        "reasons": ", ".join(f"{number:,} {reason}" for reason, number in skipped.items()) or None,
        "launches": account.launches,
        "lost_launches": account.lost_launches,
        "device_events": account.device_events,
        "unlaunched": account.unlaunched,
    }


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    if not frame.height:
        return None
    read = Account(events=total_of(frame, "events"), launches=total_of(frame, "launches")).read
    unclean = frame.filter(~pl.col("clean"))
    missing = sum(total_of(frame, name) for name in ("skipped", "no_duration", "lost_launches"))
    if unclean.height:
        who = f"rank {unclean['rank'][0]}" if unclean.height == 1 else counted(unclean.height, "rank")
        return Headline.of(f"{{read}}: too much is missing on {who} for exact figures.", read=(read, ""))
    if not missing:
        return Headline.of("{read}: nothing is missing.", read=(read, ""))
    text = f"{{read}}: {{missing}} {plural('is', missing, 'are')} missing, too few to matter."
    return Headline.of(text, read=(read, ""), missing=(missing, "count"))


analysis = Analysis(
    name="account",
    doc=__doc__,
    columns=COLUMNS,
    across_ranks=across_ranks,
    requires=("step_time",),
    headline=headline,
    of_all_ranks=True,
)
