"""What a profiler finds out at its start: who this rank is, whether it is profiled, in which way, and where to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from rankscope.capture import packing, profiler_conflicts
from rankscope.capture import process as facts
from rankscope.capture.describe import ThisRank, write_run_manifest
from rankscope.capture.notices import warn
from rankscope.capture.stop_mode import choose_way
from rankscope.errors import ConfigError
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.directory import directory_of
from rankscope.rundir.names import ENDINGS
from rankscope.rundir.ranks import parse_ranks


@dataclass(frozen=True)
class Entry:
    """A rank that is profiled."""

    rank: ThisRank
    activities: tuple[torch.profiler.ProfilerActivity, ...]
    doubt: str | None
    """What is doubtful about the run's id."""


def enter(
    config: CaptureConfig,
    activities: Sequence[torch.profiler.ProfilerActivity] | None,
    mesh: object,
    dist_context: object,
    submit: Callable[[Callable[[], None]], None],
) -> Entry | None:
    """Resolve it; ``None`` on a rank that is not profiled.

    Args:
        config: what was asked for.
        activities: what to record, what is there by default.
        mesh, dist_context: as of the ``Profiler``.
        submit: does the writing of ``run.json``, which is rank 0's whether it is profiled or not.
    """
    process, notes = facts.this_process()
    for note in notes:
        warn(note)
    if process is None:
        warn("this rank is not profiled: nobody says which rank it is")
        return None
    choice = parse_ranks(config.ranks)
    chosen = choice.selects(process.rank, process.local_rank)
    if process.rank != 0 and not chosen:
        return None
    for odd in choice.doubts(process.rank, process.local_rank, process.world_size):
        warn(odd)
    profiler_conflicts.watch()
    if chosen and profiler_conflicts.another_profiler_runs():
        warn("another torch profiler is running in this process: this one stays inert")
        chosen = False
    run_id, doubt = facts.resolve_run_id(config.run_id, process)
    run_dir = facts.resolve_run_dir(config.save_dir, run_id, process)
    kinds = tuple(activities if activities is not None else facts.activities())
    way: dict[str, str] = {}
    if chosen:
        config, compressor = _compression(_staging(config))
        where, reason = choose_way(config, kinds)
        way = {"stop": where, "stop_reason": reason, "compressor": compressor}
    given = _mesh(mesh, dist_context)
    rank = ThisRank(config, process, facts.mesh_of(given), run_id, run_dir, way, given)
    if chosen and process.world_size > 1:
        rank.wrappers.look()
    if process.rank == 0:
        manifest = rank.run_manifest(choice.expression)
        submit(lambda: write_run_manifest(run_dir, manifest))
    return Entry(rank, kinds, doubt) if chosen else None


def _mesh(mesh: object, dist_context: object) -> object:
    """The job's mesh; what cannot be asked for it is no reason not to profile."""
    if mesh is not None or dist_context is None:
        return mesh
    try:
        return facts.mesh_from(dist_context)
    except Exception as error:
        warn(f"dist_context gives no mesh: {type(error).__name__}: {error}")
        return None


def _staging(config: CaptureConfig) -> CaptureConfig:
    """With the path of the staging directory, or without what is none."""
    if config.staging_dir is None:
        return config
    try:
        return replace(config, staging_dir=directory_of(config.staging_dir))
    except ConfigError as error:
        warn(f"{error.what}: traces are staged in $TMPDIR")
        return replace(config, staging_dir=None)


def _compression(config: CaptureConfig) -> tuple[CaptureConfig, str]:
    try:
        return config, packing.compressor(ENDINGS[config.compression])
    except ImportError as error:
        warn(f"compression={config.compression!r} is not to be had here ({error}): gz instead")
        return replace(config, compression="gz"), packing.compressor(ENDINGS["gz"])
