"""A run directory: whether it is complete, and what its ranks' manifests report.

In: a run directory. Out: checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankscope.errors import ConfigError
from rankscope.jobs.doctor.check import Check
from rankscope.jobs.gather.complete import completeness, ranges
from rankscope.jobs.gather.merge import STAGE, rank_manifests
from rankscope.rundir import fields
from rankscope.rundir.archives import A_TRACE
from rankscope.rundir.coverage import lost_by_reason, other_warnings
from rankscope.rundir.manifest import RankManifest
from rankscope.rundir.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from rankscope.rundir.plurals import counted

# Each rank has its own of these.
_OWN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "NCCL_DEBUG_FILE")
_JUMP_NS = 1_000_000
_SLEW = 500e-6
"""As fast as a clock is set right without a jump: NTP's limit, 500 ppm."""
_MOST = 8
_KEPT = "make room where traces are written; what was kept is added by rankscope gather RUN THAT_DIRECTORY"


def checks(folder: Path) -> Iterator[Check]:
    """What is missing, what was lost, and settings that differ between ranks. A single trace has nothing of that."""
    try:
        found = completeness(folder)
    except ConfigError as error:
        if error.what != A_TRACE:
            yield Check("run", "directory", "fail", f"{error.path}: {error.what}", error.hint or "")
        return
    summary, *rest = found.report()
    if not found.present and not found.traces:
        summary = "no manifest of a rank, and no trace that contains its rank: whether ranks are missing is not known"
    ended, uneven = not (found.running or found.interrupted), found.uneven()
    more = "; ".join(line for line in rest if line not in uneven)
    yield Check("run", "ranks", "ok" if found.whole and ended else "warn", summary, more)
    if found.missing:
        what = f"{ranges(found.missing)} of {found.world_size} are not here"
        yield Check("run", "missing", "fail", what, f"rankscope gather {folder} HOST:DIR of the hosts they ran on")
    if found.absent_traces:
        rank, file = found.absent_traces[0]
        many = f" and {len(found.absent_traces) - 1} more" if len(found.absent_traces) > 1 else ""
        what = f"written, but missing or incomplete here: {file} of rank {rank}{many}"
        yield Check("run", "traces", "fail", what, f"rankscope gather {folder} HOST:DIR copies them again")
    if found.broken:
        (file, wrong), *others = found.broken
        many = f" and {len(others)} more" if others else ""
        what = f"{file} is incomplete{many}: {wrong}"
        fix = "copy it again; if the original is truncated, the disk was full or the job was killed during the write"
        yield Check("run", "broken", "fail", what, fix)
    for line in uneven:
        yield Check("run", "windows", "warn", line, "only steps that all ranks recorded can be compared")
    manifests = rank_manifests(folder)
    yield from _lost(manifests)
    yield from _warned(manifests)
    yield from _settings(manifests)
    yield from _shared_cores(manifests)
    yield from _clocks(manifests)
    left = [p for p in folder.rglob(f"{TEMPORARY_PREFIX}*{TEMPORARY_SUFFIX}") if STAGE not in p.parts]
    if left:
        what = f"unfinished: {left[0].name}" + (f" and {len(left) - 1} more" if len(left) > 1 else "")
        yield Check("run", "unfinished", "warn", what, "a process was killed while it wrote them; they can be removed")


def _lost(manifests: Sequence[RankManifest]) -> Iterator[Check]:
    for group in lost_by_reason(manifests, "failed")[:_MOST]:
        what = f"{counted(group.windows, 'window')} failed on {ranges(group.ranks)}: {group.reason}"
        lost = "make room where traces are written, or record fewer steps; these recordings are lost"
        yield Check("run", "failed", "fail", what, _KEPT if group.is_kept else lost)
    for group in lost_by_reason(manifests, "skipped")[:_MOST]:
        what = f"{counted(group.windows, 'window')} skipped on {ranges(group.ranks)}: {group.reason}"
        yield Check("run", "skipped", "warn", what, "let more steps pass between windows, or record fewer steps")


def _warned(manifests: Sequence[RankManifest]) -> Iterator[Check]:
    for text, ranks in list(other_warnings(manifests).items())[:_MOST]:
        yield Check("run", "warned", "warn", f"{ranges(ranks)}: {text}")


def _settings(manifests: Sequence[RankManifest]) -> Iterator[Check]:
    """Variables of communication that differ between ranks: NCCL wants them equal."""
    by_rank = {m.rank or 0: fields.strings(m.environment.get("settings")) for m in manifests}
    by_rank = {rank: settings for rank, settings in by_rank.items() if settings}
    names = sorted({name for settings in by_rank.values() for name in settings} - set(_OWN))
    shown = 0
    for name in names:
        values: dict[str | None, list[int]] = {}
        for rank, settings in by_rank.items():
            values.setdefault(settings.get(name), []).append(rank)
        if len(values) > 1 and shown < _MOST:
            shown += 1
            parts = [
                f"{'not set' if value is None else repr(value)} on {ranges(tuple(ranks))}"
                for value, ranks in list(values.items())[:3]
            ]
            what = f"{name} differs: {', '.join(parts)}"
            yield Check("run", "settings", "warn", what, "set one value for all ranks, where the launcher passes it on")


def _shared_cores(manifests: Sequence[RankManifest]) -> Iterator[Check]:
    """Ranks of one host that are bound to the same single core."""
    places: dict[tuple[str, str], list[int]] = {}
    for manifest in manifests:
        cores = fields.text(manifest.environment.get("cpu_affinity"))
        if cores and cores.isdigit():
            places.setdefault((manifest.host or "?", cores), []).append(manifest.rank or 0)
    for (host, core), ranks in list(places.items())[:_MOST]:
        if len(ranks) > 1:
            what = f"{ranges(tuple(ranks))} share core {core} of {host}"
            yield Check(
                "run", "cores", "warn", what, "--cpus-per-task and --cpu-bind; rankscope measure binding compares"
            )


def _clocks(manifests: Sequence[RankManifest]) -> Iterator[Check]:
    """A clock that was set while the job ran: wall and monotonic time diverge."""
    for manifest in manifests:
        anchors = sorted(manifest.clock_anchors, key=lambda anchor: anchor.monotonic_ns)
        for one, other in itertools.pairwise(anchors):
            passed = other.monotonic_ns - one.monotonic_ns
            jump = (other.wall_ns - one.wall_ns) - passed
            if abs(jump) > _JUMP_NS + passed * _SLEW:
                what = f"the clock of {manifest.host} jumped by {jump / 1e6:.1f} ms while rank {manifest.rank} ran"
                yield Check(
                    "run", "clock", "warn", what, "traces are still aligned by collectives; let chronyd slew, not step"
                )
                return
