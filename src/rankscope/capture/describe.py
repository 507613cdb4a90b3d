"""What this rank writes about itself: names of traces, metadata inside them, and the two manifests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.capture import process as facts
from rankscope.capture.environment import surroundings
from rankscope.capture.notices import warn
from rankscope.capture.parallelism import Wrappers, mesh_groups
from rankscope.rundir.atomic import write_new
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.manifest import (
    RankManifest,
    RunManifest,
    read_run_manifest,
    redact,
    to_json,
)
from rankscope.rundir.metadata import ClockAnchor, Mesh, StepSpan, TraceMetadata
from rankscope.rundir.names import RUN_MANIFEST, format_trace_name, rank_folder

_SWITCHES = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


@dataclass(frozen=True)
class ThisRank:
    """Everything about this rank that holds from the profiler's start to its end."""

    config: CaptureConfig
    process: facts.Process
    mesh: Mesh | None
    run_id: str
    run_dir: str
    way: Mapping[str, str]
    """Which way recordings take: ``stop``, ``stop_reason``, ``compressor``."""
    given_mesh: object = None
    """The job's own DeviceMesh, where it gave one."""
    wrappers: Wrappers = field(default_factory=Wrappers)

    def trace_path(self, first: int, last: int) -> Path:
        """Where the trace of these steps belongs."""
        process = self.process
        name = format_trace_name(
            template=self.config.name_template,
            compression=self.config.compression,
            rank=process.rank,
            world_size=process.world_size,
            local_rank=process.local_rank,
            host=process.host,
            first=first,
            last=last,
            mesh=self.mesh.by_name() if self.mesh else None,
            restart=process.restart_count,
            time=time.strftime("%Y%m%d-%H%M%S"),
            time_ns=time.time_ns(),
            pid=os.getpid(),
        )
        return self.folder() / name

    def folder(self) -> Path:
        """The folder of this rank's traces; a name may have folders of its own below it."""
        return Path(self.run_dir, rank_folder(self.process.rank, self.process.world_size))

    def schedule(self) -> dict[str, int]:
        """The schedule as manifests and traces have it, in steps."""
        names = ["warmup", "active", "repeat", "skip_first"]
        names.append("wait" if self.config.period_steps is None else "period_steps")
        return {name: int(getattr(self.config, name)) for name in names}

    def metadata(
        self,
        first: int,
        last: int,
        *,
        partial_step: int | None,
        anchors: Sequence[ClockAnchor],
        cost: Mapping[str, object],
        step_times: tuple[StepSpan, ...],
        collectives: Mapping[str, object],
        memory: Mapping[str, int],
    ) -> TraceMetadata:
        """What the trace of these steps carries. Groups are as they are now: later ones than at the start count too."""
        process = self.process
        profiler: dict[str, object] = {name: getattr(self.config, name) for name in _SWITCHES}
        profiler |= {**cost, **self.way}
        return TraceMetadata(
            run_id=self.run_id,
            rank=process.rank,
            world_size=process.world_size,
            local_rank=process.local_rank,
            host=process.host,
            launcher=process.launcher,
            restart_count=process.restart_count,
            mesh=self.mesh,
            process_groups=facts.process_groups(self.mesh_dims()),
            schedule=self.schedule(),
            first_step=first,
            last_step=last,
            partial_step=partial_step,
            clock_anchors=tuple(anchors),
            device=facts.device_of(),
            versions=facts.versions(),
            profiler=profiler,
            environment=surroundings(),
            step_times=step_times,
            parallelism=self.wrappers.describe(),
            collectives=collectives,
            memory=memory,
        )

    def mesh_dims(self) -> dict[str, str]:
        """The dimension that a process group runs along: in the mesh that was given, else in any that there is."""
        return {**self.wrappers.mesh_dims(), **mesh_groups(self.given_mesh)}

    def rank_manifest(self) -> RankManifest:
        """``ranks/rank3.json`` as it is at the start."""
        process = self.process
        return RankManifest(
            run_id=self.run_id,
            rank=process.rank,
            world_size=process.world_size,
            local_rank=process.local_rank,
            host=process.host,
            pid=os.getpid(),
            launcher=process.launcher,
            restart_count=process.restart_count,
            device=facts.device_of(),
            mesh=self.mesh,
            capture=self.way,
            environment=surroundings(),
        )

    def run_manifest(self, ranks: str) -> RunManifest:
        """``run.json``.

        Args:
            ranks: the expression that chose the ranks.
        """
        return RunManifest(
            run_id=self.run_id,
            command=tuple(redact([sys.executable, *sys.argv])),
            world_size=self.process.world_size,
            launcher=self.process.launcher,
            job_id=self.process.job_id,
            host=self.process.host,
            ranks=ranks,
            schedule=self.schedule(),
            mesh=self.mesh,
            versions=facts.versions(),
            started_ns=time.time_ns(),
        )


def write_run_manifest(run_dir: str, manifest: RunManifest) -> None:
    """Write ``run.json`` unless this run has one; where it cannot be written, warn."""
    path = Path(run_dir, RUN_MANIFEST)
    known = read_run_manifest(path)
    if known is not None and known.run_id == manifest.run_id:
        return  # a restart, or a second profiler: the first has said it
    try:
        write_new(path, to_json(manifest))
    except OSError as error:
        warn(f"the manifest {path} could not be written: {error}")
