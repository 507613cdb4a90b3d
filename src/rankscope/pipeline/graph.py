"""The graph of analyses: which one requires which, and how a level of it is run.

In: analyses with their parameters, and a rank's tables through tasks. Out: results by analysis, and findings on
failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from rankscope.analyses import get_analysis
from rankscope.errors import AnalysisError, describe_error
from rankscope.ingest.findings import not_analyzed
from rankscope.pipeline.load import Loaded
from rankscope.pipeline.tasks import Asked, Tasks, analyze_rank, asked, by_rank
from rankscope.results import NOT_ANALYZED, Finding, Inputs, Options, Part, Result, incomplete_ranks
from rankscope.store.part_cache import find_part, inputs_digest

Maps = dict[Asked, tuple[list[Part], list[Finding]]]
"""The parts of the ranks, by analysis, and the ranks without one."""


def levels(names: Sequence[str]) -> list[list[str]]:
    """The analyses and what they require, in levels: each needs only what is before it.

    Raises:
        AnalysisError: they require each other in a cycle.
    """
    depth: dict[str, int] = {}

    def visit(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise AnalysisError(f"analyses require each other: {' → '.join((*above, name))}")
        if name not in depth:
            required = get_analysis(name).requires
            depth[name] = 1 + max((visit(each, (*above, name)) for each in required), default=-1)
        return depth[name]

    for name in names:
        visit(name, ())
    return [[name for name in depth if depth[name] == level] for level in range(max(depth.values(), default=-1) + 1)]


def run_level(
    wanted: Sequence[Asked],
    loaded: Loaded,
    options: Options,
    known: Mapping[Asked, Result],
    tasks: Tasks,
    maps: Maps,
) -> dict[Asked, Result]:
    """The results of analyses that require only what is known: the map on workers, the reduce here.

    Args:
        maps: parts of ranks from earlier runs that may be needed again; new ones are added.

    Raises:
        AnalysisError: no rank could be analyzed.
    """
    required = {name for each, _ in wanted for name in get_analysis(each).requires}
    results = {name: known[asked(name)].frame for name in required}
    reading = dict.fromkeys(_mapped_as(each) for each in wanted if get_analysis(each[0]).reads)
    to_map = [each for each in reading if each not in maps]
    complete = not any(finding.id == NOT_ANALYZED for result in known.values() for finding in result.findings)
    mapped = maps | (_map(to_map, loaded, options, results, tasks, complete=complete) if to_map else {})
    maps |= {each: mapped[each] for each in to_map if any(one.of_reduce for one in get_analysis(each[0]).parameters)}
    inputs = Inputs(options, tuple(loaded.infos), results, world_size=loaded.world_size, capture=loaded.rank_manifests)
    made, incomplete = {}, incomplete_ranks(loaded.infos)
    for each in wanted:
        analysis = get_analysis(each[0])
        own = replace(inputs, parameters=dict(each[1]))
        parts, lost = mapped.get(_mapped_as(each), ([], []))
        frame, findings = analysis.reduce(parts, own)
        made[each] = replace(Result(analysis, frame, (*lost, *findings)), incomplete=incomplete)
    return made


def _mapped_as(wanted: Asked) -> Asked:
    """The key of a rank's part: parameters that `per_rank` does not use have their defaults."""
    name, chosen = wanted
    of_reduce = {each.name: each.default for each in get_analysis(name).parameters if each.of_reduce}
    return name, tuple((each, of_reduce.get(each, value)) for each, value in chosen)


def _map(
    wanted: Sequence[Asked],
    loaded: Loaded,
    options: Options,
    results: Mapping[str, pl.DataFrame],
    tasks: Tasks,
    *,
    complete: bool,
) -> Maps:
    """The part of each rank, by analysis, and the ranks without one.

    Args:
        complete: whether no rank is missing in any required result.
    """
    ranks, own = loaded.ranks, by_rank(results)
    digests = _digests(wanted, loaded, options, complete=complete)
    parts: dict[Asked, dict[int, Part | BaseException]] = {each: {} for each in wanted}
    arguments = []
    for rank, traces in ranks.items():
        missing = []
        for each in wanted:
            # Parts that are in the cache are found without starting a worker.
            digest = digests.get((rank, each))
            cached = None if digest is None else find_part(traces, each[0], digest)
            if cached is None:
                missing.append(each)
            else:
                parts[each][rank] = cached
        if missing:
            inputs = Inputs(options, tuple(each.info for each in traces), own(rank), rank, loaded.world_size)
            to_keep = {each: digests[rank, each] for each in missing if (rank, each) in digests}
            arguments.append((missing, tuple(traces), inputs, tasks.columns, to_keep))
    size = sum(info.json_bytes for info in loaded.infos) // 8
    outcomes = tasks.run("analysing", size, analyze_rank, arguments) if arguments else []
    for (missing, _, inputs, *_), outcome in zip(arguments, outcomes, strict=True):
        for each in missing:
            parts[each][inputs.rank] = outcome if isinstance(outcome, BaseException) else outcome[each]
    failures = {
        each: {rank: part for rank in ranks if isinstance(part := parts[each][rank], BaseException)} for each in wanted
    }
    nowhere = [each for each in wanted if len(failures[each]) == len(ranks)]
    if nowhere:
        rank, error = next(iter(failures[nowhere[0]].items()))
        names = ", ".join(name for name, _ in nowhere)
        raise AnalysisError(f"rank {rank}: {names}: {describe_error(error)}", path=ranks[rank][0].info.path) from error
    lost = {
        each: [not_analyzed(rank, ranks[rank][0].info.path, [each[0]], error) for rank, error in failed.items()]
        for each, failed in failures.items()
    }
    return {
        each: ([part for rank in ranks if not isinstance(part := of_ranks[rank], BaseException)], lost[each])
        for each, of_ranks in parts.items()
    }


def _digests(
    wanted: Sequence[Asked], loaded: Loaded, options: Options, *, complete: bool
) -> dict[tuple[int, Asked], bytes]:
    """What identifies the inputs of each part that may be cached, by rank and analysis.

    Those are parts of this package's analyses, as the code of others is not known, with default parameters.

    Args:
        complete: whether no rank is missing in any required result; otherwise the parts that need them are not cached.
    """
    own = [each for each in wanted if each == asked(each[0]) and _is_own(each[0])]
    by_rank = {
        rank: inputs_digest([trace.info for trace in traces], rank, options, loaded.world_size)
        for rank, traces in loaded.ranks.items()
    }
    of_run = inputs_digest(by_rank, loaded.rank_manifests)
    found: dict[tuple[int, Asked], bytes] = {}
    for each in own:
        requires = get_analysis(each[0]).requires
        if complete or not requires:
            for rank, of_rank in by_rank.items():
                found[rank, each] = inputs_digest(each, of_rank, of_run if requires else None)
    return found


def _is_own(name: str) -> bool:
    return get_analysis(name).per_rank.__module__.startswith("rankscope.")
