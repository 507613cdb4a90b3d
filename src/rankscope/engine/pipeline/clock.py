"""The run's common clock: the shift of each rank's trace clock.

    common = wall + offset_ns + drift_ppm · 10⁻⁶ · (wall − at_ns),   wall = trace clock + baseTimeNanoseconds

with the columns of the analysis `clock`. The run's clock is `common` minus the run's origin, its earliest event. The
timeline, the page, the terminal, files, queries and agents have all instants on it (`in_run_time`, `sql`); only results
in Python, of which analyses are made, have those of the files.
Ranks without shared collectives keep their wall clock; if that puts groups of linked ranks too far apart to be seen
together, each group starts at the origin, and the timeline is marked as not aligned. The clock is cached next to the
tables, so that the timeline need not wait for the analyses.

In: the result of `clock`, and the traces' own clocks. Out: a shift and drift per rank and file, and results on it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import numpy as np
import polars as pl

import rankscope
from rankscope.engine.pipeline.load import Loaded
from rankscope.errors import describe_error
from rankscope.primitives.intervals import Int64
from rankscope.results import Anchor, Finding, Options, Result
from rankscope.results.failures import FAILURES
from rankscope.store.sidecar import read_sidecar, write_sidecar
from rankscope.store.trace_info import TraceInfo

logger = logging.getLogger(__name__)

_VERSION = 2
_FILE = "clock.bin"

# Unlinked sets of ranks that are further apart than this many times their length are shown from the same start.
APART = 20
_BASE, _DRIFT, _AT = "_base", "_drift", "_at"


@dataclass(frozen=True)
class RankClock:
    """How the times of one rank become the run's.

    Attributes:
        bases: of each of its files, what makes its clock the wall clock less the run's origin, ns, shift included.
        drift: ns per ns; 0 if unknown.
        at: where on the moved clock the drift is nothing, ns.
        offset_ns: the offset of the analysis, to be shown.
        residual_ns: how good it is; None without collectives.
    """

    bases: tuple[int, ...]
    drift: float
    at: int
    offset_ns: int
    residual_ns: int | None

    def run_time(self, window: int, time: Int64) -> Int64:
        """Instants of one of the rank's files on the run's clock, ns since its origin."""
        moved = time + self.bases[window]
        if self.drift:
            moved = moved + np.rint(self.drift * (moved - self.at)).astype(np.int64)
        return moved.astype(np.int64)

    def file_time(self, window: int, instant: int) -> int:
        """The instant on the clock of one of the rank's files at an instant of the run's clock: reverses `run_time`."""
        return round((instant + self.drift * self.at) / (1 + self.drift)) - self.bases[window]


@dataclass(frozen=True)
class RunClock:
    """The clocks of all ranks.

    Attributes:
        origin_ns: the run's earliest event on the common clock, ns since 1970 if the traces record it.
        span_ns: from there to its last.
        aligned: whether all ranks are linked by collectives, or there is but one.
        residual_ns: the worst residual of a rank; None where there is none.
        ranks: each rank's clock.
    """

    origin_ns: int
    span_ns: int
    aligned: bool
    residual_ns: int | None
    ranks: Mapping[int, RankClock]

    def moved(self, frame: pl.DataFrame, instants: Sequence[str]) -> pl.DataFrame:
        """A table with its instants on the run's clock.

        Args:
            frame: rank, window, the instants on the clock of the row's file, and any others; without a window, the
                file is the rank's first.
        """
        if not instants or frame.is_empty() or "rank" not in frame.columns:
            return frame
        if "window" not in frame.columns:
            return self.moved(frame.with_columns(pl.lit(0, pl.Int64).alias("window")), instants).drop("window")
        files = pl.DataFrame(
            [
                (rank, window, base, own.drift, own.at)
                for rank, own in self.ranks.items()
                for window, base in enumerate(own.bases)
            ],
            schema={"rank": pl.Int64, "window": pl.Int64, _BASE: pl.Int64, _DRIFT: pl.Float64, _AT: pl.Int64},
            orient="row",
        )
        placed = frame.join(files, on=["rank", "window"], how="left", maintain_order="left")
        times = {name: pl.col(name) + pl.col(_BASE) for name in instants}
        drifted = (
            (time + (pl.col(_DRIFT) * (time - pl.col(_AT))).round(mode="half_to_even").cast(pl.Int64)).alias(name)
            for name, time in times.items()
        )
        return placed.with_columns(drifted).drop(_BASE, _DRIFT, _AT)

    def finding(self, finding: Finding) -> Finding:
        """A finding with its event on the run's clock, and those of its symptoms."""
        return replace(
            finding,
            anchor=None if finding.anchor is None else self._anchor(finding.anchor),
            symptoms=tuple(map(self.finding, finding.symptoms)),
        )

    def _anchor(self, anchor: Anchor) -> Anchor:
        own = self.ranks.get(anchor.rank)
        if own is None:
            return anchor

        def at(time: int) -> int:
            return int(own.run_time(anchor.window, np.array([time], dtype=np.int64))[0])

        since = None if anchor.since_ns is None else at(anchor.since_ns)
        return replace(
            anchor,
            start_ns=at(anchor.start_ns),
            end_ns=at(anchor.end_ns),
            since_ns=since,
            peers=tuple(map(self._anchor, anchor.peers)),
        )


def in_run_time(result: Result, clock: RunClock) -> Result:
    """A result with its instants, and its findings' events, on the run's clock."""
    instants = result.analysis.instants
    rows = clock.moved(result.frame, instants) if instants else result.rows
    return replace(result, rows=rows, findings=tuple(map(clock.finding, result.findings)))


def run_clock(ranks: Mapping[int, Sequence[TraceInfo]], clock: pl.DataFrame) -> RunClock:
    """Put ranks on one clock.

    Args:
        ranks: the trace files of each rank, in the order of time.
        clock: the result of the analysis `clock`; ranks that are not in it keep their wall clock.
    """
    rows = {row["rank"]: row for row in clock.iter_rows(named=True)}
    spans: dict[int, tuple[int, int]] = {}
    for rank, infos in ranks.items():
        row = rows.get(rank, {})
        times = [
            _common(row, info.base_time_ns, instant)
            for info in infos
            for instant in (info.start_ns, info.end_ns)
            if instant is not None
        ]
        if times:
            spans[rank] = min(times), max(times)
    shifts = _shifts(spans, rows)
    begins = [start + shifts[rank] for rank, (start, _) in spans.items()]
    ends = [end + shifts[rank] for rank, (_, end) in spans.items()]
    origin = min(begins, default=0)
    made = {rank: _rank_clock(rows.get(rank, {}), infos, shifts.get(rank, 0) - origin) for rank, infos in ranks.items()}
    residuals = [one.residual_ns for one in made.values() if one.residual_ns is not None]
    linked = {row["component"] for row in rows.values() if row["anchors"]}
    alone = [rank for rank in ranks if not rows.get(rank, {}).get("anchors")]
    aligned = len(ranks) < 2 or (len(linked) == 1 and not alone)
    return RunClock(origin, max(ends, default=origin) - origin, aligned, max(residuals, default=None), made)


def _common(row: Mapping[str, object], base: int, instant: int) -> int:
    wall = instant + base
    offset, drift, at = _moved_by(row)
    return wall + offset + round(drift * (wall - at))


def _moved_by(row: Mapping[str, object]) -> tuple[int, float, int]:
    offset, ppm, at = row.get("offset_ns"), row.get("drift_ppm"), row.get("at_ns")
    return (
        int(offset) if isinstance(offset, int) else 0,
        float(ppm) * 1e-6 if isinstance(ppm, float) else 0.0,
        int(at) if isinstance(at, int) else 0,
    )


def _rank_clock(row: Mapping[str, object], infos: Sequence[TraceInfo], shift: int) -> RankClock:
    offset, drift, at = _moved_by(row)
    residual = row.get("residual_ns")
    return RankClock(
        bases=tuple(info.base_time_ns + offset + shift for info in infos),
        drift=drift,
        at=at + offset + shift,
        offset_ns=offset,
        residual_ns=residual if isinstance(residual, int) else None,
    )


def _shifts(spans: Mapping[int, tuple[int, int]], rows: Mapping[int, Mapping[str, object]]) -> dict[int, int]:
    """A further shift of each rank besides its offset: 0, unless unlinked ranks are far apart."""
    sets: dict[object, list[int]] = {}
    for rank in spans:
        row = rows.get(rank, {})
        linked = row.get("component") if row.get("anchors") else None
        sets.setdefault(("alone", rank) if linked is None else linked, []).append(rank)
    extents = {
        name: (min(spans[rank][0] for rank in members), max(spans[rank][1] for rank in members))
        for name, members in sets.items()
    }
    if not extents:
        return {}
    first = min(start for start, _ in extents.values())
    longest = max(end - start for start, end in extents.values())
    apart = any(start - first > APART * max(longest, 1) for start, _ in extents.values())
    return {rank: first - extents[name][0] if apart else 0 for name, members in sets.items() for rank in members}


# -- of a run ---------------------------------------------------------------------------------------------------------


class AnalyzedRun(Protocol):
    """What clocks and queries need of a run (`rankscope.engine.pipeline.run.Run`)."""

    @property
    def loaded(self) -> Loaded:
        """Its files."""

    @property
    def options(self) -> Options:
        """How it is analyzed."""

    @property
    def world_size(self) -> int | None:
        """How many ranks the job had."""

    def analyze(self, *names: str) -> dict[str, Result]:
        """The results of analyses by name."""


def clock_of(run: AnalyzedRun) -> RunClock:
    """The run's clock: from the cache, else from the analysis `clock`, else the ranks' wall clocks."""
    found = _recall(run)
    if found is not None:
        return found
    ranks = {rank: [trace.info for trace in traces] for rank, traces in run.loaded.ranks.items()}
    try:
        clock = run_clock(ranks, run.analyze("clock")["clock"].frame)
    except FAILURES as error:
        # Reported with the analyses. The rest of the timeline is still shown.
        logger.warning("the ranks' clocks could not be compared: %s", describe_error(error))
        return run_clock(ranks, pl.DataFrame())
    _remember(run, clock)
    return clock


def _key(run: AnalyzedRun) -> str:
    ranks = [(rank, [trace.key for trace in traces]) for rank, traces in run.loaded.ranks.items()]
    what = (_VERSION, rankscope.__version__, ranks, run.options, run.world_size)
    return hashlib.sha256(repr(what).encode("utf-8", "backslashreplace")).hexdigest()


def _remember(run: AnalyzedRun, clock: RunClock) -> None:
    """Store the clock of a run."""
    folder = next(iter(run.loaded.ranks.values()))[0].folder
    ranks = {str(rank): asdict(one) for rank, one in clock.ranks.items()}
    write_sidecar(folder, _FILE, _key(run), {**asdict(clock), "ranks": ranks}, {})


def _recall(run: AnalyzedRun) -> RunClock | None:
    """The cached clock for exactly these files, or None."""
    found = read_sidecar(next(iter(run.loaded.ranks.values()))[0].folder, _FILE, _key(run))
    if found is None:
        return None
    try:
        facts = dict(found.facts)
        ranks = {
            int(rank): RankClock(**{**one, "bases": tuple(one["bases"])}) for rank, one in facts.pop("ranks").items()
        }
        return RunClock(**facts, ranks=ranks)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
