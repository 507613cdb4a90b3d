"""The graph of analyses: which one requires which, and how a level of it is run.

In: analyses with their parameters, and a rank's tables through tasks. Out: results by analysis, and findings on
failures.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from rankscope.analyses import get_analysis
from rankscope.engine.executors import Lazy
from rankscope.engine.pipeline.clock import RankClock
from rankscope.engine.pipeline.load import Loaded
from rankscope.engine.pipeline.tasks import (
    AnalysisKey,
    RankRows,
    Tasks,
    analysis_key,
    analyze_rank,
    is_own_part,
    own_rows,
)
from rankscope.errors import AnalysisError, RankscopeError, describe_error
from rankscope.ingest.findings import not_analyzed
from rankscope.results import NOT_ANALYZED, Finding, Inputs, Options, Part, Result, concat_ranks, incomplete_ranks
from rankscope.results.compressed_frames import Frames, StoredFrame, stored
from rankscope.results.packed_parts import PackedParts
from rankscope.store.part_cache import find_parts, inputs_digest

RankParts = dict[AnalysisKey, tuple[Sequence[Part], list[Finding]]]
"""For each analysis, the ranks' parts, and findings about ranks without one."""


def levels(names: Sequence[str]) -> list[list[str]]:
    """The analyses and what they require, in levels: each needs only what is before it.

    An analysis shares the level of one that it requires if a rank's rows of that one are the rank's own part: then one
    task computes both.

    Raises:
        AnalysisError: they require each other in a cycle.
    """
    depth: dict[str, int] = {}

    def visit(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise AnalysisError(f"analyses require each other: {' → '.join((*above, name))}")
        if name not in depth:
            depth[name] = max(
                (
                    visit(required, (*above, name)) + (not is_own_part(required))
                    for required in get_analysis(name).requires
                ),
                default=0,
            )
        return depth[name]

    for name in names:
        visit(name, ())
    return [[name for name in depth if depth[name] == level] for level in range(max(depth.values(), default=-1) + 1)]


@dataclass
class Kept:
    """What a run keeps from one call of `run_level` to the next.

    Attributes:
        parts: of ranks.
        shared: what analyses of all ranks share, by `Inputs.once`.
    """

    parts: RankParts = field(default_factory=dict)
    shared: dict[tuple[str, ...], Any] = field(default_factory=dict)


def run_level(
    keys: Sequence[AnalysisKey],
    loaded: Loaded,
    options: Options,
    known: Mapping[AnalysisKey, Result],
    tasks: Tasks,
    kept: Kept,
    clocks: Mapping[int, RankClock] | None = None,
) -> dict[AnalysisKey, Result]:
    """The results of analyses whose requirements are known: `per_rank` on workers, `across_ranks` here.

    Args:
        kept: what may be needed again; new parts are added.
        clocks: of the ranks, if an analysis was given an instant.

    Raises:
        AnalysisError: no rank could be analyzed.
    """
    required = {name for analysis, _ in keys for name in get_analysis(analysis).requires}
    results = {name: known[analysis_key(name)].rows for name in required if analysis_key(name) in known}
    with_tables = dict.fromkeys(_part_key(key) for key in keys if get_analysis(key[0]).reads)
    to_map = [key for key in with_tables if key not in kept.parts]
    complete = not any(finding.id == NOT_ANALYZED for result in known.values() for finding in result.findings)
    mapped = kept.parts | (
        _map(to_map, loaded, options, results, tasks, complete=complete, clocks=clocks) if to_map else {}
    )
    # Others are read from the cache again: kept in memory, they would take more of it than the results do.
    kept.parts |= {
        key: mapped[key]
        for key in to_map
        if any(p.of_reduce for p in get_analysis(key[0]).parameters) and not _is_cached(key, complete=complete)
    }
    # Reading the log of a large job takes seconds.
    log = loaded.log if any(get_analysis(name).reads_log for name, _ in keys) else None
    asked_in_vain: list[Finding] = []

    def ask(name: str, ranks: Collection[int]) -> pl.DataFrame:
        key, of_ranks = analysis_key(name), loaded.of_ranks(ranks)
        if not of_ranks.ranks:
            return concat_ranks([], get_analysis(name).columns)
        parts, lost = _map([key], of_ranks, options, {}, tasks, complete=True)[key]
        asked_in_vain.extend(lost)
        return concat_ranks(parts, get_analysis(name).columns)

    inputs = Inputs(
        options, tuple(loaded.infos), Frames(results), world_size=loaded.world_size,
        capture=loaded.rank_manifests, left_out=loaded.left_out, log=log, ask=ask, shared=kept.shared,
    )  # fmt: skip
    computed, incomplete = {}, incomplete_ranks(loaded.infos)
    by_part: dict[AnalysisKey, list[AnalysisKey]] = {}
    for key in keys:
        by_part.setdefault(_part_key(key), []).append(key)
    for part_key, same in by_part.items():
        parts, lost = mapped.pop(part_key, ([], []))
        for key in same:
            analysis = get_analysis(key[0])
            frame, findings = analysis.reduce_stored(parts, replace(inputs, parameters=dict(key[1])))
            frame = stored(frame)
            if key == analysis_key(key[0]):
                results[key[0]] = frame
            computed[key] = replace(Result(analysis, frame, (*lost, *asked_in_vain, *findings)), incomplete=incomplete)
            asked_in_vain.clear()
            del frame
        del parts
        _return_freed_memory()
    return computed


def _return_freed_memory() -> None:
    """Give freed memory back to the system: glibc keeps it, several megabytes after ranks were compared."""
    with suppress(OSError, AttributeError, TypeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


def _part_key(key: AnalysisKey) -> AnalysisKey:
    """The key of a rank's part: parameters that `per_rank` does not use have their defaults."""
    name, values = key
    defaults = {parameter.name: parameter.default for parameter in get_analysis(name).parameters if parameter.of_reduce}
    return name, tuple((parameter, defaults.get(parameter, value)) for parameter, value in values)


def _map(
    keys: Sequence[AnalysisKey],
    loaded: Loaded,
    options: Options,
    results: Mapping[str, StoredFrame],
    tasks: Tasks,
    *,
    complete: bool,
    clocks: Mapping[int, RankClock] | None = None,
) -> RankParts:
    """The ranks' parts of some analyses, from the cache or from workers.

    Args:
        complete: whether no rank is missing in any required result.
    """
    ranks, digests_of = loaded.ranks, _digests(keys, loaded, options, complete=complete)
    positions = {rank: position for position, rank in enumerate(ranks)}
    parts = {key: PackedParts(len(ranks)) for key in keys}
    failures: dict[AnalysisKey, dict[int, BaseException]] = {key: {} for key in keys}
    todo: list[tuple[int, tuple[AnalysisKey, ...], dict[str, StoredFrame]]] = []
    for rank, traces in ranks.items():
        # Cached parts do not need a worker.
        digests = digests_of(rank)
        cached = find_parts(traces, {key[0]: digest for key, digest in digests.items()})
        missing = tuple(key for key in keys if key not in digests or key[0] not in cached)
        for key in keys:
            if key not in missing:
                parts[key].put(positions[rank], cached[key[0]])
        if missing:
            needed = {analysis_key(name) for key in missing for name in get_analysis(key[0]).requires}
            own: dict[str, StoredFrame] = {
                key[0]: own_rows(key[0], cached[key[0]]) for key in needed & digests.keys() if key[0] in cached
            }
            todo.append((rank, missing if not todo or missing != todo[-1][1] else todo[-1][1], own))
    rows_of = {name: RankRows(frame) for name, frame in results.items() if todo and "rank" in frame.schema}

    def arguments(index: int) -> tuple[Any, ...]:
        rank, missing, own = todo[index]
        rows = {name: rows_of[name].of(rank) if name in rows_of else frame for name, frame in results.items()}
        infos = tuple(trace.info for trace in ranks[rank])
        file_time = clocks[rank].file_time if clocks is not None else None
        inputs = Inputs(options, infos, Frames(own | rows), rank, loaded.world_size, file_time=file_time)
        to_cache = {key: digest for key, digest in digests_of(rank).items() if key in missing}
        return missing, tuple(ranks[rank]), inputs, tasks.columns, to_cache

    def arrived(index: int, outcome: Mapping[AnalysisKey, Part | RankscopeError] | BaseException) -> None:
        rank, missing, _ = todo[index]
        for key in missing:
            found = outcome if isinstance(outcome, BaseException) else outcome[key]
            if isinstance(found, BaseException):
                failures[key][rank] = found
            parts[key].put(positions[rank], None if isinstance(found, BaseException) else found)

    if todo:
        size = sum(info.json_bytes for info in loaded.infos) // 8
        tasks.run_each("analyzing", size, analyze_rank, Lazy(len(todo), arguments), arrived)
    failed = [key for key in keys if len(failures[key]) == len(ranks)]
    if failed:
        rank = next(rank for rank in ranks if rank in failures[failed[0]])
        error = failures[failed[0]][rank]
        names = ", ".join(name for name, _ in failed)
        raise AnalysisError(f"rank {rank}: {names}: {describe_error(error)}", path=ranks[rank][0].info.path) from error
    return {
        key: (
            parts[key],
            [
                not_analyzed(rank, ranks[rank][0].info.path, [key[0]], failures[key][rank])
                for rank in ranks
                if rank in failures[key]
            ],
        )
        for key in keys
    }


def _digests(
    keys: Sequence[AnalysisKey], loaded: Loaded, options: Options, *, complete: bool
) -> Callable[[int], dict[AnalysisKey, bytes]]:
    """A function that gives a rank's digests of the inputs of each part that may be cached.

    Args:
        complete: whether no rank is missing in any required result.
    """
    to_cache = {key: _needs_all_ranks(key[0]) for key in keys if _is_cached(key, complete=complete)}

    def digests_of(rank: int) -> dict[AnalysisKey, bytes]:
        own = loaded.rank_digests[rank]
        return {
            key: inputs_digest(key, options, own, loaded.digest if of_all else None) for key, of_all in to_cache.items()
        }

    return digests_of


def _is_cached(key: AnalysisKey, *, complete: bool) -> bool:
    """Whether an analysis's parts are cached on disk.

    Only parts with default parameters are, and only of this package's analyses, as the digest does not cover the code
    of others. If a rank is missing in a required result (not `complete`), what depends on it is not cached either.
    """
    analysis = get_analysis(key[0])
    builtin = analysis.per_rank.__module__.startswith("rankscope.")
    return builtin and key == analysis_key(key[0]) and (complete or not analysis.requires)


def _needs_all_ranks(name: str) -> bool:
    """Whether a rank's part depends on other ranks' traces."""
    return any(not is_own_part(required) or _needs_all_ranks(required) for required in get_analysis(name).requires)
