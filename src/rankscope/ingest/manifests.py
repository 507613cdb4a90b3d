"""Findings from the manifests that capture writes next to the traces: windows skipped or lost, traces that are gone.

In: manifests of ranks (``ranks/rank3.json``): what each rank wrote, skipped and failed to write, and why. Out: findings
about what the traces do not show. `window_gaps` needs no manifest: it finds steps that only some ranks recorded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal

from rankscope.results import Evidence, Finding, Severity
from rankscope.rundir.coverage import gaps, lost_by_reason, other_warnings
from rankscope.rundir.hang_dump import HANG_FOLDER, dump_name
from rankscope.rundir.manifest import (
    LostWindow,
    RankManifest,
    RunManifest,
    WrittenTrace,
    attempts,
    read_rank_manifest,
    read_run_manifest,
)
from rankscope.rundir.plurals import counted
from rankscope.store.objects import read_objects
from rankscope.store.trace_info import TraceInfo

# Reasons and steps that one finding lists; a manifest holds up to a thousand windows.
_MAX_LISTED = 16
_MAX_STEPS = 1000


def read_manifests(
    run_files: Sequence[str], rank_files: Sequence[str], run_id: str | None
) -> tuple[RunManifest | None, list[RankManifest], list[Finding]]:
    """The manifests of a run, and findings for those that cannot be read.

    Args:
        run_files: run manifests, of this run and others.
        rank_files: manifests of ranks.
        run_id: the run; None for no manifests.
    """
    if run_id is None:
        return None, [], []
    runs = (read_run_manifest(content) for _, content in _contents(run_files))
    run = next((manifest for manifest in runs if manifest is not None and manifest.run_id == run_id), None)
    ranks, bad = [], []
    for file, content in _contents(rank_files):
        manifest = read_rank_manifest(content)
        if manifest is None or manifest.run_id is None or manifest.rank is None:
            bad.append(file)
        elif manifest.run_id == run_id:
            ranks.append(manifest)
    ranks.sort(key=lambda manifest: (manifest.rank or 0, manifest.restart_count))
    if not bad:
        return run, ranks, []
    files = counted(len(bad), "rank manifest", "rank manifests")
    title = f"{files} cannot be read: windows that capture skipped or lost there are not known"
    evidence = tuple(Evidence("file", file) for file in bad[:_MAX_LISTED])
    return run, ranks, [Finding("manifest-unreadable", "warning", title, evidence=evidence, advice="Copy them again.")]


def _contents(files: Sequence[str]) -> Iterator[tuple[str, Path | bytes]]:
    """Manifests, those behind URLs with their contents, which are empty if they cannot be read."""
    yield from ((file, Path(file)) for file in files if "://" not in file)
    yield from ((url, content or b"") for url, content in read_objects(file for file in files if "://" in file))


def why_no_traces(rank_files: Sequence[str]) -> str:
    """Why there are manifests of ranks but no traces, to end a message with; empty if not recorded."""
    for file in rank_files[:_MAX_LISTED]:
        manifest = read_rank_manifest(Path(file))
        if manifest is not None and (lost := (*manifest.failed, *manifest.skipped)):
            return f"; rank {manifest.rank} reported: {lost[0].reason}"
    return ""


def capture_findings(
    manifests: Sequence[RankManifest], traces: Iterable[str], folders: Sequence[str] = ()
) -> list[Finding]:
    """Findings about what the ranks' manifests report and the traces do not show.

    Args:
        traces: every trace that was found, of this run and others.
        folders: the directories that were searched. A running job may have written more there since.
    """
    present = {PurePath(trace.replace("\\", "/")).name for trace in traces}
    return [
        *_lost_windows(manifests, "failed", "warning", "recorded but not written to the run directory"),
        *_lost_windows(manifests, "skipped", "info", "not recorded"),
        *_missing_traces(manifests, present, folders),
        *_interrupted(manifests, folders),
        *_unfinished(manifests, folders),
        *_warned(manifests),
    ]


def _lost_windows(
    manifests: Sequence[RankManifest], kind: Literal["failed", "skipped"], severity: Severity, what: str
) -> list[Finding]:
    return [
        Finding(
            id=f"windows-{kind}",
            severity=severity,
            title=f"{counted(group.windows, 'window was', 'windows were')} {what} on "
            f"{counted(len(group.ranks), 'rank')}: {group.reason}",
            ranks=group.ranks,
            steps=_steps([window for _, window in group.entries]),
            evidence=tuple(
                Evidence(f"rank {rank}, {_step_range(window.first_step, window.last_step)}", window.reason)
                for rank, window in group.entries[:_MAX_LISTED]
            ),
            advice=_advice(kind, is_kept=group.is_kept),
        )
        for group in lost_by_reason(manifests, kind)
    ]


def _advice(kind: str, *, is_kept: bool) -> str:
    if kind == "skipped":
        return "Results cover the recorded windows only."
    if is_kept:
        return "Add the kept traces: rankscope gather RUN DIRECTORY. Free space where traces are written."
    return "Free space where the traces are written, or write fewer; what was recorded then is lost."


def _missing_traces(manifests: Sequence[RankManifest], present: set[str], folders: Sequence[str]) -> list[Finding]:
    gone: list[tuple[int, WrittenTrace]] = [
        (manifest.rank or 0, trace)
        for manifest in manifests
        for trace in manifest.written
        if PurePath(trace.file).name not in present and not any(_exists(folder, trace.file) for folder in folders)
    ]
    if not gone:
        return []
    return [
        Finding(
            id="traces-gone",
            severity="warning",
            title=f"{counted(len(gone), 'trace that was written is', 'traces that were written are')} not here",
            ranks=tuple(sorted({rank for rank, _ in gone})),
            steps=_steps([trace for _, trace in gone]),
            evidence=tuple(Evidence(f"rank {rank}", trace.file) for rank, trace in gone[:_MAX_LISTED]),
            advice="They were moved or deleted, or are on another host's disk: gather them in one place.",
        )
    ]


def _exists(folder: str, file: str) -> bool:
    try:
        return Path(folder, file).exists()
    except (OSError, ValueError):  # no right to look; a name with a null character
        return False


def _dumps_advice(manifests: Sequence[RankManifest], folders: Sequence[str]) -> str:
    """Where to read what the ranks were doing when they hung or ended; empty without dumps."""
    names = {str(PurePath(HANG_FOLDER, dump_name(manifest.rank or 0))) for manifest in manifests}
    for folder in folders:
        if any(_exists(folder, name) for name in names):
            return f" What the ranks were doing then: rankscope hang {shlex.quote(folder)}"
    return ""


def _interrupted(manifests: Sequence[RankManifest], folders: Sequence[str]) -> list[Finding]:
    return [
        found
        for attempt, in_attempt in attempts(manifests)
        if (found := _interrupted_attempt(attempt, [m for m in in_attempt if m.state == "interrupted"], folders))
        is not None
    ]


def _interrupted_attempt(attempt: str, ended: Sequence[RankManifest], folders: Sequence[str]) -> Finding | None:
    if not ended:
        return None
    causes = sorted({manifest.ended_by or "unknown cause" for manifest in ended})
    job = attempt.capitalize() if attempt else "The job"
    earliest = min(
        ended, key=lambda manifest: (manifest.last_step is None, manifest.last_step or 0, manifest.rank or 0)
    )
    why = earliest.interruption if len(causes) == 1 else ", ".join(causes[:_MAX_LISTED])
    return Finding(
        id="job-interrupted",
        severity="warning",
        title=f"{job} was interrupted on {counted(len(ended), 'rank')}: {why}",
        ranks=tuple(sorted({manifest.rank or 0 for manifest in ended})),
        evidence=tuple(Evidence(f"rank {manifest.rank}", manifest.interruption) for manifest in ended[:_MAX_LISTED]),
        advice="Results cover the steps that were recorded before." + _dumps_advice(ended, folders),
    )


def _unfinished(manifests: Sequence[RankManifest], folders: Sequence[str]) -> list[Finding]:
    ended = (manifest for _, in_attempt in attempts(manifests) for manifest in in_attempt)
    running = sorted({manifest.rank or 0 for manifest in ended if manifest.state == "running"})
    if not running:
        return []
    return [
        Finding(
            id="capture-unfinished",
            severity="info",
            title=f"Capture has not ended on {counted(len(running), 'rank')}: the job is still running, or was killed",
            ranks=tuple(running),
            evidence=(Evidence("ranks with an unfinished manifest", len(running), "count"),),
            advice="If it is running, more windows may come; if it was killed, the last one may be missing."
            + _dumps_advice(manifests, folders),
        )
    ]


def _warned(manifests: Sequence[RankManifest]) -> list[Finding]:
    """Warnings of capture, except for lost windows, which have other findings."""
    return [
        Finding(
            id="capture-warned",
            severity="info",
            title=f"Capture warned: {text}",
            ranks=ranks,
            evidence=(Evidence("ranks", len(ranks), "count"),),
        )
        for text, ranks in list(other_warnings(manifests).items())[:_MAX_LISTED]
    ]


Members = Mapping[int, Sequence[TraceInfo]]
"""The traces of each rank."""


def without_withdrawn(
    members: Members, manifests: Sequence[RankManifest]
) -> tuple[dict[int, list[TraceInfo]], list[Finding]]:
    """The traces, without windows that another rank withdrew for all ranks after these had written them.

    Traces of the script's own profilers are kept, and so is the only trace of a rank.
    """
    recorded = {(m.rank, m.restart_count, window.first_step) for m in manifests for window in m.written}
    withdrawn = {
        (m.restart_count, window.first_step, window.last_step): (m.rank, window.reason)
        for m in manifests
        for window in m.skipped
        if window.on_all_ranks and (m.rank, m.restart_count, window.first_step) not in recorded
    }
    withdrawn_files: dict[str, tuple[int | None, str]] = {}
    for manifest in manifests:
        for trace in manifest.written:
            reason = withdrawn.get((manifest.restart_count, trace.first_step, trace.last_step))
            if reason is not None and not trace.adopted:
                withdrawn_files[PurePath(trace.file).name] = reason
    kept: dict[int, list[TraceInfo]] = {}
    left_out: dict[tuple[int, int | None, str], list[TraceInfo]] = {}
    for rank, infos in members.items():
        by_name = {PurePath(info.path.replace("\\", "/")).name: info for info in infos}
        dropped = {name: info for name, info in by_name.items() if name in withdrawn_files}
        if len(dropped) == len(infos):
            dropped = {}
        kept[rank] = [info for info in infos if info not in dropped.values()]
        for name, info in dropped.items():
            left_out.setdefault((rank, *withdrawn_files[name]), []).append(info)
    return kept, [_withdrawn(*key, infos) for key, infos in list(left_out.items())[:_MAX_LISTED]]


def _withdrawn(rank: int, other: int | None, reason: str, infos: Sequence[TraceInfo]) -> Finding:
    """The finding about traces that are left out because another rank has none of their steps."""
    which = f"the trace of {_step_range(infos[0].first_step, infos[0].last_step)}"
    if len(infos) > 1:
        which = f"{len(infos)} traces"
    return Finding(
        id="window-withdrawn",
        severity="warning",
        title=f"{which[0].upper()}{which[1:]} on rank {rank} {'is' if len(infos) == 1 else 'are'} left out: "
        f"rank {other} has none of {'these steps' if len(infos) == 1 else 'their steps'}",
        ranks=(rank,),
        steps=_steps([LostWindow(info.first_step, info.last_step) for info in infos]),
        evidence=(*(Evidence("file", info.path) for info in infos[:_MAX_LISTED]), Evidence(f"rank {other}", reason)),
        advice="Results cover the windows that all ranks recorded.",
    )


def window_gaps(members: Members) -> list[Finding]:
    """Windows of steps that only some ranks recorded: their ranks cannot be compared."""
    spans = {
        rank: [
            (info.first_step, info.last_step)
            for info in infos
            if info.first_step is not None and info.last_step is not None
        ]
        for rank, infos in members.items()
    }
    return [
        Finding(
            id="window-gap",
            severity="warning",
            title=f"{counted(len(gap.lacking), 'rank has', 'ranks have')} no trace of "
            f"{_step_range(gap.first, gap.last)}, which others recorded",
            ranks=gap.lacking,
            steps=_steps([LostWindow(gap.first, gap.last)]),
            evidence=(
                Evidence("ranks that recorded them", len(gap.recorded), "count"),
                Evidence("ranks that did not", len(gap.lacking), "count"),
            ),
            advice="Only steps that all ranks recorded can be compared: --steps chooses them.",
        )
        for gap in gaps({rank: windows for rank, windows in spans.items() if windows}, _MAX_LISTED)
    ]


def _step_range(first: int | None, last: int | None) -> str:
    if first is None and last is None:
        return "unknown steps"
    return f"step {first}" if first == last else f"steps {first}–{last}"


def _steps(windows: Iterable[LostWindow | WrittenTrace]) -> tuple[int, ...]:
    steps: set[int] = set()
    for window in windows:
        first, last = window.first_step, window.last_step
        if first is not None and last is not None and len(steps) < _MAX_STEPS:
            steps.update(range(first, min(last, first + _MAX_STEPS) + 1))
    return tuple(sorted(steps)[:_MAX_STEPS])
