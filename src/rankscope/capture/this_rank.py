"""This rank of the run: whether it is profiled, how, and what it writes into traces and manifests.

In go the options, torch's state and the launcher's variables; out come file names, the metadata of a trace and both
manifests.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from rankscope.capture import environment, packing
from rankscope.capture import process as processes
from rankscope.capture.notices import warn
from rankscope.capture.parallelism import Wrappers, mesh_groups
from rankscope.capture.script_profilers import conflicts
from rankscope.capture.script_profilers.adopted_window import AdoptedWindow
from rankscope.capture.step_log import RunSnapshot
from rankscope.capture.stop_mode import LOOP, THREAD, choose_stop_mode
from rankscope.capture.uploads import Uploads
from rankscope.errors import ConfigError, without_credentials
from rankscope.rundir import staging
from rankscope.rundir.atomic import write_atomic, write_new
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.directory import directory_of
from rankscope.rundir.manifest import RankManifest, RunManifest, read_run_manifest, redact, to_json
from rankscope.rundir.metadata import Mesh, ProcessGroup, TraceMetadata
from rankscope.rundir.names import ENDINGS, RUN_MANIFEST, TraceIdentity, format_trace_name, rank_folder
from rankscope.rundir.ranks import parse_ranks

_SWITCHES = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


@dataclass(frozen=True)
class JobStructure:
    """How the job is divided, as traces have it."""

    groups: tuple[ProcessGroup, ...]
    parallelism: tuple[Mapping[str, object], ...]


@dataclass(frozen=True)
class ThisRank:
    """What holds for this rank from the profiler's start to its end."""

    config: CaptureConfig
    process: processes.Process
    activities: tuple[torch.profiler.ProfilerActivity, ...]
    mesh: Mesh | None
    run_id: str
    run_dir: str
    is_profiled: bool = True
    """Whether it records; a rank that does not logs its steps all the same (`watch`)."""
    run_id_doubt: str | None = None
    """Why the ranks may not share the run id."""
    capture: Mapping[str, str] = field(default_factory=dict)
    """How windows are recorded: ``stop``, ``stop_reason``, ``compressor``."""
    device_mesh: object = None
    """The job's own DeviceMesh, if it gave one."""
    uploads: Uploads | None = None
    """Where complete files are uploaded to."""
    wrappers: Wrappers = field(default_factory=Wrappers)
    _seen: list[JobStructure] = field(default_factory=list)

    @property
    def stops_off_loop(self) -> bool:
        """Whether recordings are stopped and saved in the writer's thread."""
        return self.capture["stop"] == THREAD

    def trace_path(self, first: int, last: int) -> Path:
        """Where the trace of these steps goes."""
        process = self.process
        identity = TraceIdentity(
            process.rank,
            first,
            last,
            process.world_size,
            process.local_rank,
            process.host,
            mesh=self.mesh.by_name() if self.mesh else None,
            restart=process.restart_count,
            time=time.strftime("%Y%m%d-%H%M%S"),
            time_ns=time.time_ns(),
            pid=os.getpid(),
        )
        return self.folder() / format_trace_name(identity, self.config.name_template, self.config.compression)

    def folder(self) -> Path:
        """The folder of this rank's traces; a trace's name may have further folders in it."""
        return Path(self.run_dir, rank_folder(self.process.rank, self.process.world_size))

    def kept_folder(self) -> Path | None:
        """Where traces are kept if that folder cannot be written; ``None`` without a local directory."""
        local = staging.staging_folder(self.config.staging_dir, None, 0)
        return None if local is None else staging.kept_folder(local, self.run_dir)

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
        snapshot: RunSnapshot,
        collectives: Mapping[str, object],
        groups: tuple[ProcessGroup, ...] = (),
        adopted: AdoptedWindow | None = None,
    ) -> TraceMetadata:
        """What the trace of these steps carries. The process groups are those of now, which may be more than at the
        start, or ``groups`` if there are none any more. A window that was ``adopted`` has the settings of its own
        profiler, and no schedule."""
        process, structure = self.process, self.structure()
        settings: dict[str, object] = {**{name: getattr(self.config, name) for name in _SWITCHES}, **self.capture}
        if adopted is not None:
            settings |= {**adopted.settings, "stop": LOOP, "stop_reason": "the script stopped it"}
            settings["recorded_by"] = adopted.source
        return TraceMetadata(
            run_id=self.run_id,
            rank=process.rank,
            world_size=process.world_size,
            local_rank=process.local_rank,
            host=process.host,
            boot_id=environment.boot_id(),
            launcher=process.launcher,
            restart_count=process.restart_count,
            mesh=self.mesh,
            process_groups=structure.groups or groups,
            schedule=self.schedule() if adopted is None else {},
            first_step=first,
            last_step=last,
            partial_step=partial_step,
            clock_anchors=snapshot.trace_anchors,
            device=environment.describe_device(),
            versions=environment.versions(),
            profiler={**settings, **snapshot.trace_cost()},
            environment=environment.describe_environment(),
            step_times=snapshot.trace_spans(),
            parallelism=structure.parallelism,
            collectives=collectives,
            memory=snapshot.memory,
        )

    def structure(self) -> JobStructure:
        """As it is now, or as it was seen last if the job has destroyed its process groups since."""
        groups = processes.process_groups(self.mesh_dims())
        if groups or not self._seen:
            self._seen[:] = [JobStructure(groups, self.wrappers.describe())]
        return self._seen[0]

    def mesh_dims(self) -> dict[str, str]:
        """The mesh dimension of each process group, by name: in the mesh that was given, else in any that exists."""
        return {**self.wrappers.mesh_dims(), **mesh_groups(self.device_mesh)}

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
            device=environment.describe_device(),
            mesh=self.mesh,
            capture=self.capture,
            upload_to=without_credentials(self.config.upload_to) if self.config.upload_to else None,
            environment=environment.describe_environment(),
            requested_steps=self.config.repeat * self.config.active or None,
        )

    def drop_schedule(self) -> None:
        """The script's own profilers have recorded instead of the schedule: ``run.json`` no longer names it."""
        for path in sorted(Path(self.run_dir).glob("run*.json")):
            known = read_run_manifest(path)
            if known is not None and known.run_id == self.run_id and known.schedule:
                write_atomic(path, to_json(replace(known, schedule={})))
                if self.uploads is not None and self.process.rank == 0:  # who has uploaded it
                    self.uploads.put(path)

    def run_manifest(self, ranks: str) -> RunManifest:
        """``run.json``.

        Args:
            ranks: the expression that selected the ranks.
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
            versions=environment.versions(),
            started_ns=time.time_ns(),
        )


def resolve_rank(
    config: CaptureConfig,
    activities: Sequence[torch.profiler.ProfilerActivity] | None,
    mesh: object,
    dist_context: object,
    submit: Callable[[Callable[[], None]], None],
) -> ThisRank | None:
    """This rank, or ``None`` if it neither records nor logs its steps.

    Args:
        config: the options.
        activities: what to record; by default what is available.
        mesh, dist_context: those of the ``Profiler``.
        submit: runs the writing of ``run.json``, which rank 0 does whether it is profiled or not.
    """
    process, notes = processes.this_process()
    for note in notes:
        warn(note)
    if process is None:
        warn("this rank is not profiled: its rank is unknown")
        return None
    choice = parse_ranks(config.ranks)
    selected = choice.selects(process.rank, process.local_rank)
    logs_only = config.watch and not selected and process.world_size > 1
    if process.rank != 0 and not selected and not logs_only:
        return None
    for doubt in choice.doubts(process.rank, process.local_rank, process.world_size):
        warn(doubt)
    conflicts.watch()
    if selected and conflicts.another_profiler_runs():
        warn("another torch profiler is running in this process: this one stays inactive")
        selected = False
    run_id, run_id_doubt = processes.resolve_run_id(config.run_id, process)
    run_dir = processes.resolve_run_dir(config.save_dir, run_id, process)
    process = processes.agree_on_attempt(process, run_dir, run_id)
    # What the options cause is the same on all ranks: the first one that is profiled says it for all.
    say = _silent if any(map(choice.selects, range(process.rank))) else warn
    kinds = tuple(activities if activities is not None else environment.default_activities())
    capture: dict[str, str] = {}
    if selected:
        config, compressor = _with_compressor(_with_staging(config, say), say)
        mode, reason = choose_stop_mode(config, kinds)
        capture = {"stop": mode, "stop_reason": reason, "compressor": compressor}
    device_mesh = _device_mesh(mesh, dist_context, say)
    plain_mesh = processes.describe_mesh(device_mesh)
    uploads = Uploads(config.upload_to, run_dir) if config.upload_to else None
    rank = ThisRank(
        config,
        process,
        kinds,
        plain_mesh,
        run_id,
        run_dir,
        selected,
        run_id_doubt,
        capture,
        device_mesh,
        uploads,
    )
    if selected and process.world_size > 1:
        rank.wrappers.find()
    if process.rank == 0:
        manifest = rank.run_manifest(choice.expression)
        submit(lambda: write_run_manifest(run_dir, manifest, uploads, is_profiled=selected))
    # Without an agreed id, its log would be that of another run.
    return rank if selected or (logs_only and run_id_doubt is None) else None


def write_run_manifest(
    run_dir: str, manifest: RunManifest, uploads: Uploads | None = None, *, is_profiled: bool = False
) -> None:
    """Write ``run.json`` unless this run has one; warn if it cannot be written."""
    path = Path(run_dir, RUN_MANIFEST)
    known = read_run_manifest(path)
    if known is not None and known.run_id == manifest.run_id:
        return  # a restart, or a second profiler: the first has written it
    try:
        written = write_new(path, to_json(manifest))
        if uploads is not None:
            uploads.put(written)
    except OSError as error:
        is_writable = os.access(f"{run_dir}{os.sep}", os.W_OK)  # the separator: and a directory
        if not is_profiled or is_writable:  # else the rank's own manifest is next, and warns
            warn(f"the manifest {path} could not be written: {error}")


def _silent(_text: str) -> None:
    """Another rank warns."""


def _device_mesh(mesh: object, dist_context: object, say: Callable[[str], None]) -> object:
    """The job's mesh; a context that fails is no reason not to profile."""
    if mesh is not None or dist_context is None:
        return mesh
    try:
        return processes.mesh_from_context(dist_context)
    except Exception as error:
        say(f"dist_context gives no mesh: {type(error).__name__}: {error}")
        return None


def _with_staging(config: CaptureConfig, say: Callable[[str], None]) -> CaptureConfig:
    """With the path of the staging directory, or without one that is not valid."""
    if config.staging_dir is None:
        return config
    try:
        return replace(config, staging_dir=directory_of(config.staging_dir))
    except ConfigError as error:
        say(f"{error.what}: traces are staged in $TMPDIR")
        return replace(config, staging_dir=None)


def _with_compressor(config: CaptureConfig, say: Callable[[str], None]) -> tuple[CaptureConfig, str]:
    try:
        return config, packing.compressor(ENDINGS[config.compression])
    except ImportError as error:
        say(f"compression={config.compression!r} is not available here ({error}): using gz instead")
        return replace(config, compression="gz"), packing.compressor(ENDINGS["gz"])
