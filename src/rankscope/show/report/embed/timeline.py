"""A run's timeline as blocks of bytes, from which the page answers the requests that it would send to a server.

In: a timeline, matched collectives and findings. Out: blocks, in this order while they fit: device events of each
rank, host events, matched collectives, critical paths, counters, details of the longest events, Python frames. Ranks
that findings name come first, then the others by number. Included events are exact; `left_out` lists the rest, which
the page shows. Format: `show/web/PROTOCOL.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import polars as pl

from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.errors import describe_error
from rankscope.primitives.intervals import Int64
from rankscope.results import Finding
from rankscope.results.failures import FAILURES
from rankscope.rundir.plurals import counted
from rankscope.show.report.anonymize import Anonymizer
from rankscope.show.report.embed.collectives import CollectiveKinds, with_event_numbers
from rankscope.show.report.embed.encoding import block, json_block, steps_of
from rankscope.show.report.embed.longest_events import LONGEST, longest_events
from rankscope.show.report.embed.paths import MOST_RANKS, path_block
from rankscope.show.report.embed.stages import STAGE_OF, STAGES, Codes, StagedRank, codes_of, names_used
from rankscope.show.report.formatting import numbered
from rankscope.show.timeline.build import draw_run
from rankscope.show.timeline.counters import curves_of
from rankscope.show.timeline.critical_path import NEEDED, CriticalPaths
from rankscope.show.timeline.heat_map import heat_of
from rankscope.show.timeline.timeline import Timeline
from rankscope.store.cache import CachedTrace

T = TypeVar("T")

FORMAT = 1
# Curves with more samples are thinned: no screen shows them.
MAX_SAMPLES = 200_000
# Bytes for the sentences in `left_out`.
SENTENCES = 4000


@dataclass
class Embedded:
    """Blocks by name, and what did not fit.

    Attributes:
        blocks: bytes by name.
        left_out: data that the report lacks, in sentences.
    """

    blocks: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return sum(size_of(data) for data in self.blocks.values())


@dataclass(frozen=True)
class Analyzed:
    """Results that the page shows on the timeline.

    Attributes:
        collectives: the analysis's result.
        grid: waiting and lateness by rank and step, as `grid_of` gives them.
        paths: finds the critical paths.
    """

    collectives: pl.DataFrame | None = None
    grid: Mapping[str, Any] | None = None
    paths: CriticalPaths | None = None


def grid_of(run: Run) -> dict[str, Any] | None:
    """Waiting and lateness by rank and step, as `timeline.heat` gives them; None where their analyses fail."""
    return heat_of(run, clock_of(run))


def embed_run(run: Run, grid: Mapping[str, Any] | None, room: int, names: Anonymizer | None = None) -> Embedded:
    """The timeline of a run as blocks.

    Args:
        run: the run.
        grid: of `grid_of`.
        room: the most bytes for the blocks.
        names: anonymizes what is embedded.
    """
    lost: list[str] = []

    def on_progress(timeline: Timeline, rank: int, error: BaseException | None) -> None:
        if error is not None:
            lost.append(f"Rank {rank}, whose timeline could not be built: {describe_error(error)}.")

    with run.keep_workers():
        clock = clock_of(run)
        timeline = draw_run(run, clock, on_progress)
        collectives = run.attempt("collectives").get("collectives")
        frame = None if collectives is None else collectives.frame
        analyzed = Analyzed(frame, grid, _paths(run, timeline))
        return embed(timeline, analyzed, run.diagnose(), room, lost, names)


def _paths(run: Run, timeline: Timeline) -> CriticalPaths | None:
    """What finds the critical paths; None where an analysis that they need fails."""
    results = run.attempt(*NEEDED)
    if not set(NEEDED) <= set(results):
        return None
    return CriticalPaths(timeline, {name: results[name].frame for name in NEEDED}, run.options.communication)


def size_of(data: bytes) -> int:
    """Bytes that a block takes up in the file, with its element."""
    return -(-len(data) // 3) * 4 + 100


def embed(
    timeline: Timeline,
    analyzed: Analyzed,
    findings: Iterable[Finding],
    room: int,
    lost: Sequence[str] = (),
    names: Anonymizer | None = None,
) -> Embedded:
    """The timeline as blocks.

    Args:
        timeline: the run's timeline.
        analyzed: results of analyses.
        findings: the run's, most severe first: they decide which ranks come first.
        room: the most bytes for the blocks.
        lost: ranks without a timeline, in sentences.
        names: anonymizes the blocks.
    """
    found = Embedded(left_out=list(lost))
    collectives, grid = analyzed.collectives, analyzed.grid

    def attempt(what: str, make: Callable[..., T], *arguments: Any) -> T | None:
        # What fails for one rank must not cost the page the others.
        try:
            return make(*arguments)
        except FAILURES as error:
            found.left_out.append(f"{what}, which could not be encoded: {describe_error(error)}.")
            return None

    made = {
        rank: attempt(f"The events of rank {rank}", StagedRank, in_run, timeline.traces[rank])
        for rank, in_run in timeline.ranks.items()
    }
    ranks = {rank: each for rank, each in made.items() if each is not None}
    order = _priority(list(ranks), findings)
    codes = codes_of(list(ranks.values()))
    matched = {}
    for rank, each in ranks.items():
        rows = attempt(f"The collectives of rank {rank}", with_event_numbers, timeline, each, collectives)
        matched[rank] = pl.DataFrame(schema={"event": pl.Int64}) if rows is None else rows
    kinds = CollectiveKinds()
    for rows in matched.values():
        if rows.height:
            kinds.columns(rows)
    # The head's names come first: nothing is readable without them.
    left = room - SENTENCES - size_of(json_block(_head(timeline, ranks, dict.fromkeys(ranks, 3), codes, grid, kinds)))
    kept = dict.fromkeys(ranks, 0)

    def fits(name: str, make: Callable[..., bytes], *arguments: Any) -> bool:
        nonlocal left
        data = attempt(f"The part {name}", make, *arguments)
        if data is None or size_of(data) > left:
            return False
        left -= size_of(data)
        found.blocks[name] = data
        return True

    def stage_in(stage: int) -> None:
        for rank in order:
            low, high = ranks[rank].bounds[stage]
            if kept[rank] == stage and (
                (low == high and left > 0) or fits(f"{STAGES[stage]}-{rank}", _events_of, ranks[rank], stage, codes)
            ):
                kept[rank] = stage + 1

    def bound(rank: int) -> int:
        return ranks[rank].bounds[kept[rank] - 1][1] if kept[rank] else 0

    stage_in(0)
    stage_in(1)
    lacking: dict[str, list[int]] = {"Matching collectives on other ranks": [], "Counters": []}
    for rank in order:
        rows = matched[rank].filter(pl.col("event") < bound(rank))
        if rows.height and not fits(f"collectives-{rank}", _collectives_of, rows, kinds):
            lacking["Matching collectives on other ranks"].append(rank)
    if analyzed.paths is not None:
        lacking["Critical paths"] = _add_paths(analyzed.paths, ranks, order, bound, fits)
    for rank in order:
        if kept[rank] and not fits(f"counters-{rank}", _curves, timeline, ranks[rank]):
            lacking["Counters"].append(rank)
    detailed = _add_details(timeline, ranks, order, bound, fits, names)
    stage_in(2)
    found.left_out += _left_out(ranks, kept, lacking, detailed)
    compared = collectives["rank"].n_unique() if collectives is not None else 0
    more = {"compared": compared, "left_out": found.left_out, "detailed": detailed}
    head = _head(timeline, ranks, kept, codes, grid, kinds) | more
    found.blocks["timeline"] = json_block(names.head(head) if names is not None else head)
    return found


def _priority(ranks: Sequence[int], findings: Iterable[Finding]) -> list[int]:
    """Ranks that findings name, in the findings' order, then the others by number."""
    named = [rank for finding in findings if finding.severity != "info" for rank in finding.ranks]
    return [rank for rank in dict.fromkeys([*named, *sorted(ranks)]) if rank in set(ranks)]


def _add_paths(
    paths: CriticalPaths,
    ranks: Mapping[int, StagedRank],
    order: Sequence[int],
    bound: Callable[[int], int],
    fits: Callable[..., bool],
) -> list[int]:
    """Adds the critical paths across ranks and of the first ranks; returns the ranks without one of their own."""
    fits("path", path_block, paths, ranks, bound, None)
    drawn = [rank for rank in order if bound(rank)]
    lacking = [rank for rank in drawn[:MOST_RANKS] if not fits(f"path-{rank}", path_block, paths, ranks, bound, rank)]
    return sorted([*lacking, *drawn[MOST_RANKS:]])


def _add_details(
    timeline: Timeline,
    ranks: Mapping[int, StagedRank],
    order: Sequence[int],
    bound: Callable[[int], int],
    fits: Callable[..., bool],
    names: Anonymizer | None,
) -> int:
    """Adds arguments and stacks of each rank's longest events; returns for how many per rank, 0 where none fit."""
    each = max(1, min(LONGEST, 4 * LONGEST // max(len(ranks), 1)))
    fitted = 0
    for rank in order:
        if bound(rank):
            more = ranks[rank], timeline.traces[rank], bound(rank), each, names
            fitted += fits(f"details-{rank}", _details_of, *more)
    return each if fitted else 0


def _events_of(rank: StagedRank, stage: int, codes: Codes) -> bytes:
    return block(*rank.columns(stage, codes))


def _collectives_of(rows: pl.DataFrame, kinds: CollectiveKinds) -> bytes:
    return block(kinds.columns(rows))


def _details_of(
    rank: StagedRank, traces: Sequence[CachedTrace], bound: int, most: int, names: Anonymizer | None
) -> bytes:
    longest = longest_events(rank, traces, bound, most)
    return json_block(names.details(longest) if names is not None else longest)


def _head(
    timeline: Timeline,
    ranks: Mapping[int, StagedRank],
    kept: Mapping[int, int],
    codes: Codes,
    grid: Mapping[str, Any] | None,
    kinds: CollectiveKinds,
) -> dict[str, Any]:
    """The layout of the included lanes, the names, and the meaning of the codes."""
    keys = [each.keys[: each.bounds[kept[rank] - 1][1] if kept[rank] else 0] for rank, each in ranks.items()]
    names = names_used(keys, timeline.names)
    renumbered = {number: place for place, number in enumerate(names)}
    used = [place for place, name in enumerate(codes.name.tolist()) if name in renumbered]
    last = used[-1] + 1 if used else 0
    return {
        "format": FORMAT,
        "layout": {**_layout(timeline, ranks, kept), "names": len(names)},
        "names": list(names.values()),
        "codes": {
            "name": [renumbered.get(name, 0) for name in codes.name[:last].tolist()],
            "category": codes.category[:last].tolist(),
            "table": codes.table[:last].tolist(),
        },
        "kinds": kinds.rows,
        "heat": grid,
        "events": sum(int(each.order.size) for each in ranks.values()),
        "kept": sum(int(each.size) for each in keys),
    }


def _layout(timeline: Timeline, ranks: Mapping[int, StagedRank], kept: Mapping[int, int]) -> dict[str, Any]:
    """The layout with the included lanes, renumbered."""
    layout = timeline.layout()
    tracks: list[dict[str, Any]] = []
    lanes: dict[str, list[Any]] = {name: [] for name in layout["lanes"]}
    rows = []
    for row in layout["ranks"]:
        first, count = row["tracks"]
        stages, mine = kept.get(row["rank"], 0), ranks.get(row["rank"])
        begin = len(tracks)
        if not stages or mine is None:
            rows.append({**row, "tracks": [0, 0]})
            continue
        for track in layout["tracks"][first : first + count]:
            summary = track["kind"] == "rank"
            stage = mine.summary_stage if summary else STAGE_OF[track["kind"]]
            if stage >= stages and not summary:
                continue
            low, size = track["lanes"]
            for lane in range(low, low + size):
                for name, values in lanes.items():
                    values.append(layout["lanes"][name][lane])
                lanes["track"][-1] = len(tracks)
                if stage >= stages:
                    lanes["events"][-1] = lanes["first_ns"][-1] = lanes["last_ns"][-1] = 0
            tracks.append({**track, "lanes": [len(lanes["track"]) - size, size]})
        rows.append({**row, "tracks": [begin, len(tracks) - begin]})
    return {**layout, "ranks": rows, "tracks": tracks, "lanes": lanes}


def _curves(timeline: Timeline, rank: StagedRank) -> bytes:
    """A rank's counters: of each its instants and values."""
    columns: dict[str, Int64] = {}
    meta = []
    for place, curve in enumerate(curves_of(timeline.traces[rank.rank], timeline.clock.ranks[rank.rank])):
        at, value = curve.at, curve.value
        cut = at.size > MAX_SAMPLES
        if cut:
            at, value = at[:: -(-at.size // MAX_SAMPLES)], value[:: -(-at.size // MAX_SAMPLES)]
        meta.append({**curve.description, "cut": cut})
        columns[f"{place}.at"] = steps_of(at)
        columns[f"{place}.value"] = steps_of(value)
    return block(columns, {"counters": meta})


def _left_out(
    ranks: Mapping[int, StagedRank], kept: Mapping[int, int], lacking: Mapping[str, Sequence[int]], detailed: int
) -> list[str]:  # fmt: skip
    """What is left out, in sentences."""
    sentences = []
    for stage, what in enumerate(("All events", "Host threads and named ranges", "Python frames")):
        some = [rank for rank, each in ranks.items() if kept[rank] <= stage and _events(each, stage, kept[rank])]
        if some:
            count = sum(_events(ranks[rank], stage, kept[rank]) for rank in some)
            sentences.append(f"{what} of {_which(some)} ({counted(count, 'event')}).")
    sentences += [f"{what} of {_which(some)}." for what, some in lacking.items() if some]
    if any(kept.values()):
        sentences.append(
            f"Arguments, shapes and stacks of all but the longest events ({detailed} per rank)."
            if detailed
            else "Arguments, shapes and stacks of events."
        )
    return sentences


def _which(ranks: Sequence[int]) -> str:
    return numbered("rank", list(ranks), limit=2000)


def _events(rank: StagedRank, stage: int, kept: int) -> int:
    """Events of a stage that a rank lacks; a rank without the first stage lacks all, counted once."""
    low, high = rank.bounds[stage]
    if kept == 0:
        return int(rank.order.size) if stage == 0 else 0
    return high - low if stage >= kept else 0
