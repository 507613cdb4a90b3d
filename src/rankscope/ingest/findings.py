"""Findings about files that could not be read, or only in part.

In: paths with errors, and the metadata of each trace (`TraceInfo`). Out: findings. `run_findings` has those about the
run and rank of a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from rankscope.errors import OtherTraceError, RankscopeError, describe_error
from rankscope.ingest.categories import READ, named
from rankscope.results import NOT_ANALYZED, Evidence, Finding, Severity
from rankscope.rundir.names import DATABASE_SUFFIXES, split_process
from rankscope.rundir.plurals import counted, plural
from rankscope.store.account import NO_DURATION, SKIPPED_SHARE, UNPAIRED_END
from rankscope.store.trace_info import TraceInfo

NOT_A_TRACE = "not-a-trace"
# Links or files that one finding lists.
_MAX_LISTED = 16


def short_names(*paths: str) -> list[str]:
    """Paths as titles show them: names, with as many folders as tell them apart."""
    parts = [PurePath(path.replace("\\", "/")).parts for path in paths]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(set(paths)):
            return names
    return list(paths)


def _name(path: str) -> str:
    return short_names(path)[0]


# -- files that were not read -------------------------------------------------------------------------------------


def unreadable(path: str, error: BaseException) -> Finding:
    """A file that could not be read."""
    return Finding(
        id="trace-unreadable",
        severity="error",
        title=f"{path} could not be read: {describe_error(error)}",
        evidence=(Evidence("file", path),),
        advice=error.hint if isinstance(error, RankscopeError) and error.hint else "Copy it again, or leave it out.",
    )


def not_traces(files: Sequence[tuple[str, RankscopeError]]) -> list[Finding]:
    """Files of other kinds in a searched directory: not a problem, unless they are traces that cannot be used.

    Args:
        files: each file, and what it is instead.
    """
    others = [(path, error) for path, error in files if isinstance(error, OtherTraceError)]
    beside = [(path, error) for path, error in files if not isinstance(error, OtherTraceError)]
    return [*_left_out(others, "warning"), *_left_out(beside, "info")]


def _left_out(files: Sequence[tuple[str, RankscopeError]], severity: Severity) -> list[Finding]:
    if not files:
        return []
    path, error = files[0]
    reads = "" if severity == "info" else " that rankscope reads"
    more = f"{counted(len(files), 'file')} are not traces{reads} and were left out; the first, {_name(path)}"
    return [
        Finding(
            id=NOT_A_TRACE,
            severity=severity,
            title=f"{more if len(files) > 1 else f'{_name(path)} is not a trace{reads} and was left out'}: "
            f"{describe_error(error)}",
            evidence=tuple(Evidence("file", each) for each, _ in files[:_MAX_LISTED]),
            advice=error.hint or "",
        )
    ]


def links_not_followed(links: Sequence[tuple[str, str]]) -> list[Finding]:
    """Symbolic links that were not followed: their targets are not among the traces.

    Args:
        links: each link, and why.
    """
    if not links:
        return []
    path, why = links[0]
    return [
        Finding(
            id="link-not-followed",
            severity="info",
            title=f"{len(links)} symbolic links were not followed; the first, {path}: {why}"
            if len(links) > 1
            else f"{path} was not followed: {why}",
            evidence=tuple(Evidence("link", link) for link, _ in links[:_MAX_LISTED]),
            advice="If they lead to traces of this run, add their directory to the command line.",
        )
    ]


def merged_trace(path: str) -> Finding:
    """A file that repeats the events of other files."""
    return Finding(
        id="trace-doubled",
        severity="info",
        title=f"{_name(path)} repeats the traces of other files, and was left out",
        evidence=(Evidence("file", path),),
        advice="To look at it, open only this file.",
    )


def not_analyzed(rank: int, path: str, names: Sequence[str], error: BaseException) -> Finding:
    """A rank that was read, but that some analyses could not process."""
    return Finding(
        id=NOT_ANALYZED,
        severity="error",
        title=f"Rank {rank} is missing from {', '.join(names)}: {describe_error(error)}",
        ranks=(rank,),
        evidence=(
            Evidence("file", path),
            Evidence("reason", describe_error(error)),
            Evidence("analyses", ", ".join(names)),
        ),
        advice=(error.hint if isinstance(error, RankscopeError) else None) or "Please report this.",
    )


# -- steps --------------------------------------------------------------------------------------------------------


def incomplete_steps(infos: Sequence[TraceInfo]) -> list[Finding]:
    """Steps without a complete iteration, which results leave out."""
    found = [(info.rank, step) for info in infos for step in info.incomplete_steps]
    if not found:
        return []
    steps = sorted({incomplete["step"] for _, incomplete in found})
    if all(info.is_incomplete for info in infos if info.incomplete_steps):
        why = "The rest is not in the file, which ends too early."
    else:
        why = (
            "Each prof.step() opens the next step: it stays nearly empty if the loop ends there, or if prof.step() "
            "comes first in the loop."
        )
    ranks = sorted({rank for rank, _ in found if rank is not None})
    shown = ", ".join(map(str, steps[:3])) + (f" and {len(steps) - 3} more" if len(steps) > 3 else "")
    evidence = [
        evidence
        for rank, incomplete in found[: _MAX_LISTED // 3]
        for evidence in (
            Evidence(
                f"{_rank_prefix(rank)}step {incomplete['step']}: operators and device events",
                incomplete["events"],
                "count",
            ),
            Evidence(
                f"{_rank_prefix(rank)}operators and device events of the other steps (median)",
                incomplete["usual_events"],
                "count",
            ),
            Evidence(
                f"{_rank_prefix(rank)}step {incomplete['step']}: duration on the host", incomplete["duration_ns"], "ns"
            ),
        )
    ]
    return [
        Finding(
            id="incomplete-step",
            severity="info",
            title=f"{plural('Step', len(steps), 'Steps')} {shown} {plural('holds', len(steps), 'hold')} no complete "
            f"iteration and {plural('is', len(steps), 'are')} left out",
            ranks=tuple(ranks),
            steps=tuple(steps),
            evidence=tuple(evidence),
            advice=f"{why} --steps {steps[-1]} shows it.",
        )
    ]


def _rank_prefix(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}, "


# -- losses -------------------------------------------------------------------------------------------------------


def losses_of(infos: Sequence[TraceInfo]) -> list[Finding]:
    """What could not be read of each file."""
    cut = {info.rank for info in infos if info.is_incomplete}
    none_complete = all(info.rank in cut for info in infos)
    lost = [finding for info in infos for finding in _losses(info, none_complete)]
    return [*lost, *_empty(infos), *_unknown_categories(infos)]


def _losses(info: TraceInfo, none_complete: bool) -> list[Finding]:
    ranks = () if info.rank is None else (info.rank,)
    read, file = sum(info.counts.values()), Evidence("file", info.path)
    findings = []
    if info.truncated or info.lost_events or info.lost_metadata:
        findings.append(_incomplete(info, ranks, read, none_complete))
    elif info.checksum:
        findings.append(
            Finding(
                id="trace-damaged",
                severity="warning",
                title=f"{_name(info.path)} fails its checksum: {counted(read, 'event')} were read, but some may "
                "differ from what was written",
                ranks=ranks,
                evidence=(file, Evidence("events read", read, "count"), Evidence("reason", info.reason or "unknown")),
                advice="Copy the file again.",
            )
        )
    if info.account.lacks_device_events:
        findings.append(_lost_device_events(info, ranks, none_complete))
    timeless = info.account.no_duration
    oddities = {
        f"events {NO_DURATION}": timeless,
        UNPAIRED_END: info.account.unread.get(UNPAIRED_END, 0),
        **info.odd,
        "pieces of invalid JSON that were repaired": info.repaired,
    }
    oddities = {name: number for name, number in oddities.items() if number}
    if oddities:
        what = "parts of it do not follow the format"
        if timeless:
            what = f"the time of {counted(timeless, 'event')} without a plausible duration is missing"
        findings.append(
            Finding(
                id="trace-oddities",
                severity="warning" if timeless else "info",
                title=f"{_name(info.path)} was read, but {what}",
                ranks=ranks,
                evidence=(file, *(Evidence(name, number, "count") for name, number in oddities.items())),
            )
        )
    if info.others and split_process(info.path)[0].lower().endswith(DATABASE_SUFFIXES):
        findings.append(
            Finding(
                id="archive-holds-more",
                severity="warning",
                title=f"{_name(split_process(info.path)[0])} holds "
                f"{counted(info.others, 'more process', 'more processes')} with events: not read",
                ranks=ranks,
                evidence=(file, Evidence("processes not read", info.others, "count")),
                advice="Processes with kernels are ranks, unless the file is named after one rank.",
            )
        )
    elif info.others:
        findings.append(
            Finding(
                id="archive-holds-more",
                severity="warning",
                title=f"{_name(info.path)} holds {counted(info.others, 'more file')} that may be "
                f"{plural('a trace', info.others, 'traces')}: only the first was read",
                ranks=ranks,
                evidence=(file, Evidence("files not read", info.others, "count")),
                advice="Unpack it and open the directory. An archive with several traces is read whole if it is named "
                "itself and not damaged.",
            )
        )
    return findings


def _lost_device_events(info: TraceInfo, ranks: tuple[int, ...], none_complete: bool) -> Finding:
    account = info.account
    of = f"{account.lost_launches:,} of {counted(account.launches, 'launch', 'launches')}"
    whose = f"Rank {info.rank}" if info.rank is not None else _name(info.path)
    if account.lacks_device:
        title = f"{whose}: the device was not recorded: none of {account.launches:,} launches has a device event"
        advice = (
            "Record the device (ProfilerActivity.CUDA or XPU), with no other profiler on it; host operators are not "
            "what it computed."
        )
    else:
        left_out = "" if none_complete else ", and comparisons leave the rank out"
        title = f"{whose} lost device events: {of} have none; figures of its device are incomplete{left_out}"
        advice = "Record again with a longer warm-up (--warmup): profilers lose kernels at the start of a recording."
    evidence = (
        Evidence("file", info.path),
        Evidence("launches of kernels and graphs", account.launches, "count"),
        Evidence("without a device event", account.lost_launches, "count"),
    )
    return Finding("device-events-lost", "warning", title, ranks=ranks, evidence=evidence, advice=advice)


def _empty(infos: Sequence[TraceInfo]) -> list[Finding]:
    """Files without the event of an operator, a call or a device."""
    empty = [info for info in infos if info.is_empty]
    if not empty:
        return []
    ranks = tuple(sorted({info.rank for info in empty if info.rank is not None}))
    who = f"Rank {ranks[0]}'s trace" if len(ranks) == 1 else f"The traces of {counted(len(ranks), 'rank')}"
    what = "metadata only" if any(info.counts for info in empty) else "no event"
    return [
        Finding(
            id="trace-empty",
            severity="warning",
            title=f"{who} {plural('is', len(ranks), 'are')} empty ({what})",
            ranks=ranks,
            evidence=tuple(Evidence("file", info.path) for info in empty[:_MAX_LISTED]),
            advice="Did the profiler's schedule reach its active steps there, and did the job export after them?",
        )
    ]


def _unknown_categories(infos: Sequence[TraceInfo]) -> list[Finding]:
    """Files with ranges that no table has: what ran in them is missing."""
    found = [info for info in infos if info.account.unknown_share >= SKIPPED_SHARE]
    if not found:
        return []
    first = max(found, key=lambda info: info.account.unknown_share)
    account = first.account
    more = f", and of {counted(len(found) - 1, 'other file')}" if len(found) > 1 else ""
    return [
        Finding(
            id="unknown-categories",
            severity="warning",
            title=f"{sum(account.unknown.values()):,} of {counted(account.timed, 'timed event')} of "
            f"{_name(first.path)}{more} have no category of torch.profiler and are not counted: "
            f"{named(account.unknown)}",
            ranks=tuple(sorted({info.rank for info in found if info.rank is not None})),
            evidence=(
                *(Evidence("file", info.path) for info in found[:_MAX_LISTED]),
                *(
                    Evidence(f"events of {name or 'no category'}", number, "count")
                    for name, number in Counter(account.unknown).most_common(_MAX_LISTED)
                ),
            ),
            advice=f"What ran in them looks idle. rankscope reads {READ}.",
        )
    ]


def _incomplete(info: TraceInfo, ranks: tuple[int, ...], read: int, none_complete: bool) -> Finding:
    overview = (
        "; the overview includes the rank, as no rank's file is complete"
        if none_complete
        else ", and the overview leaves the rank out, as do rules and comparisons"
    )
    # How much is lost after a break is unknown: only the torn event at the end is counted.
    extent = (
        (Evidence("events after the break", "unknown"),)
        if info.truncated
        else (Evidence("events lost", info.lost_events, "count"), Evidence("text lost", info.lost_bytes, "bytes"))
    )
    return Finding(
        id="trace-truncated" if info.truncated else "trace-damaged",
        severity="error",
        title=f"{_name(info.path)} {'ends too early' if info.truncated else 'is damaged in places'}: "
        f"only {counted(read, 'event')} could be read{overview if info.is_incomplete else ''}",
        ranks=ranks,
        evidence=(
            Evidence("file", info.path),
            Evidence("events read", read, "count"),
            *extent,
            Evidence("reason", info.reason or "unknown"),
        ),
        advice="Copy the file again. If the original is damaged too, the disk was full or the job was killed "
        "while saving: rankscope.Profiler puts a file in place only when it is complete.",
    )
