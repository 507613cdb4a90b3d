"""The analyses' graph: what requires what, and the run of a level of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from rankscope.analyses import get_analysis
from rankscope.errors import AnalysisError
from rankscope.ingest.losses import not_analyzed, said
from rankscope.pipeline.load import Loaded
from rankscope.pipeline.tasks import Tasks, analyze_rank, by_rank
from rankscope.results import Analysis, Finding, Inputs, Options, Result


def levels(names: Sequence[str]) -> list[list[str]]:
    """The analyses and what they require, in levels: each needs only what is before it.

    Raises:
        AnalysisError: they require each other in a circle.
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
    analyses: Sequence[Analysis], loaded: Loaded, options: Options, known: Mapping[str, Result], tasks: Tasks
) -> dict[str, Result]:
    """The results of analyses that require only what is known: the map on workers, the reduce here.

    Raises:
        AnalysisError: not one rank could be analysed.
    """
    required = {name for analysis in analyses for name in analysis.requires}
    results = {name: known[name].frame for name in required}
    names = [analysis.name for analysis in analyses if analysis.reads]
    parts, lost = _map(names, loaded, options, results, tasks) if names else ({}, [])
    inputs = Inputs(options, tuple(loaded.infos), results, world_size=loaded.world_size)
    made = {}
    for analysis in analyses:
        frame, findings = analysis.across_ranks(parts.get(analysis.name, []), inputs)
        told = lost if analysis.name in names else []
        made[analysis.name] = Result(analysis, frame, (*told, *findings))
    return made


def _map(
    names: Sequence[str], loaded: Loaded, options: Options, results: Mapping[str, pl.DataFrame], tasks: Tasks
) -> tuple[dict[str, list[pl.DataFrame]], list[Finding]]:
    """Each rank's share, by analysis; and the ranks that gave none."""
    ranks, own = loaded.ranks, by_rank(results)
    arguments = [(names, rank, tuple(traces), options, loaded.world_size, own(rank)) for rank, traces in ranks.items()]
    size = sum(info.json_bytes for info in loaded.infos) // 8
    outcomes = tasks.run("analysing", size, analyze_rank, arguments)
    failures = {r: o for r, o in zip(ranks, outcomes, strict=True) if isinstance(o, BaseException)}
    if len(failures) == len(ranks):
        rank, error = next(iter(failures.items()))
        raise AnalysisError(f"rank {rank}: {', '.join(names)}: {said(error)}", path=ranks[rank][0].info.path) from error
    parts = {name: [made[name] for made in outcomes if not isinstance(made, BaseException)] for name in names}
    return parts, [not_analyzed(rank, ranks[rank][0].info.path, names, error) for rank, error in failures.items()]
