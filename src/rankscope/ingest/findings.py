"""What of a run's files was lost, damaged or missing, as findings: never silence."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.errors import RankscopeError, describe_error
from rankscope.results import Evidence, Finding
from rankscope.rundir.plurals import counted, plural
from rankscope.store.trace_info import TraceInfo


def unreadable(path: str, error: BaseException, *, beside: bool = False) -> Finding:
    """A file that gave nothing.

    Args:
        beside: it merely lay in the directory and is no trace, so that nobody need worry.
    """
    hint = error.hint if isinstance(error, RankscopeError) and error.hint else "Copy it again, or leave it out."
    return Finding(
        id="not-a-trace" if beside else "trace-unreadable",
        severity="info" if beside else "error",
        title=f"{path} {'is no trace and was left out' if beside else 'could not be read'}: {describe_error(error)}",
        evidence=(Evidence("file", path),),
        advice=hint,
    )


def not_followed(links: Sequence[tuple[str, str]]) -> list[Finding]:
    """Symbolic links that were left alone: what they lead to is not among the traces.

    Args:
        links: each link, and why.
    """
    if not links:
        return []
    several = len(links) > 1
    path, why = links[0]
    return [
        Finding(
            id="link-not-followed",
            severity="info",
            title=f"{len(links)} symbolic links were not followed; the first, {path}: {why}"
            if several
            else f"{path} was not followed: {why}",
            evidence=tuple(Evidence("link", link) for link, _ in links[:16]),
            advice="If traces that belong here lie behind it, name their folder on the command line as well.",
        )
    ]


def doubled(path: str) -> Finding:
    """A file whose events are in other files too."""
    return Finding(
        id="trace-doubled",
        severity="info",
        title=f"{path} holds the traces beside it once more, and was left out",
        evidence=(Evidence("file", path),),
        advice="Open it by itself to look at it.",
    )


def not_analyzed(rank: int, path: str, names: Sequence[str], error: BaseException) -> Finding:
    """A rank that was read, and that no number below counts."""
    return Finding(
        id="rank-not-analyzed",
        severity="error",
        title=f"Rank {rank} is missing from {', '.join(names)}: {describe_error(error)}",
        ranks=(rank,),
        evidence=(Evidence("file", path), Evidence("reason", describe_error(error))),
        advice=(error.hint if isinstance(error, RankscopeError) else None) or "Please report this.",
    )


def _extent_of_loss(info: TraceInfo) -> tuple[Evidence, ...]:
    """How much is gone. Of a file that breaks off nobody knows: what is counted is only the torn event at its end."""
    if info.truncated:
        return (Evidence("events after the break", "unknown"),)
    return Evidence("events lost", info.lost_events, "count"), Evidence("text lost", info.lost_bytes, "bytes")


def _is_cut(info: TraceInfo) -> bool:
    """Whether events are missing; what `overview` leaves out, while there are other ranks."""
    return info.truncated or info.lost_events > 0


_IN_OVERVIEW = {
    False: ", and the overview leaves the rank out",
    True: "; the overview counts them nevertheless, for no rank's file is whole",
}


def losses_of(infos: Sequence[TraceInfo]) -> list[Finding]:
    """What the files that were read have lost."""
    findings = []
    cut = {info.rank for info in infos if _is_cut(info)}
    none_whole = all(info.rank in cut for info in infos)
    for info in infos:
        ranks = () if info.rank is None else (info.rank,)
        read = sum(info.counts.values())
        if info.truncated or info.lost_events or info.lost_metadata:
            findings.append(
                Finding(
                    id="trace-truncated" if info.truncated else "trace-damaged",
                    severity="error",
                    title=f"{info.path} "
                    + ("breaks off before its end" if info.truncated else "is damaged in places")
                    + f": only {counted(read, 'event')} of it could be read"
                    + (_IN_OVERVIEW[none_whole] if _is_cut(info) else ""),
                    ranks=ranks,
                    evidence=(
                        Evidence("events read", read, "count"),
                        *_extent_of_loss(info),
                        Evidence("reason", info.reason or "unknown"),
                    ),
                    advice="Copy the file again. If it was cut where it was written, the disk was full or the job was "
                    "killed while it saved: rankscope.Profiler puts a file in place only when it is whole.",
                )
            )
        elif info.checksum:
            findings.append(
                Finding(
                    id="trace-damaged",
                    severity="warning",
                    title=f"{info.path} fails its checksum: its {counted(read, 'event')} were read, and may not "
                    "all be what was written",
                    ranks=ranks,
                    evidence=(Evidence("events read", read, "count"), Evidence("reason", info.reason or "unknown")),
                    advice="Copy the file again.",
                )
            )
        oddities = {**info.odd, **({"pieces of invalid JSON that were mended": info.repaired} if info.repaired else {})}
        if oddities:
            findings.append(
                Finding(
                    id="trace-oddities",
                    severity="info",
                    title=f"{info.path} has oddities that were read all the same",
                    ranks=ranks,
                    evidence=tuple(Evidence(name, number, "count") for name, number in oddities.items()),
                )
            )
        if info.others:
            findings.append(
                Finding(
                    id="archive-holds-more",
                    severity="warning",
                    title=f"{info.path} holds {counted(info.others, 'file')} more that may be "
                    f"{plural('a trace', info.others, 'traces')}: only its first was read",
                    ranks=ranks,
                    evidence=(Evidence("files not read", info.others, "count"),),
                    advice="Unpack it and open the folder: an archive is read as one trace.",
                )
            )
        if not read:
            findings.append(
                Finding(
                    id="trace-empty",
                    severity="warning",
                    title=f"{info.path} holds no events",
                    ranks=ranks,
                    evidence=(Evidence("events", 0, "count"),),
                    advice="Did the schedule reach its active steps?",
                )
            )
    return findings


def missing_ranks(infos: Sequence[TraceInfo], chosen: str | None) -> list[Finding]:
    """Ranks of the job without a trace.

    Args:
        chosen: the expression that chose which ranks were profiled, where it is known.
    """
    size = max((info.world_size for info in infos if info.world_size), default=0)
    present = {info.rank for info in infos}
    missing = [rank for rank in range(size) if rank not in present]
    if not missing:
        return []
    on_purpose = chosen is not None and chosen.strip() != "all"
    return [
        Finding(
            id="missing-ranks",
            severity="info" if on_purpose else "warning",
            title=f"{len(missing)} of {counted(size, 'rank')} {plural('has', len(missing), 'have')} no trace here",
            ranks=tuple(missing),
            evidence=(
                Evidence("ranks in the job", size, "count"),
                Evidence("ranks read", size - len(missing), "count"),
                *((Evidence("profiled ranks", chosen),) if chosen is not None else ()),
            ),
            advice="Only these ranks were asked for."
            if on_purpose
            else "Gather the other ranks' files into one place; without them, waiting cannot be told from transfer.",
        )
    ]
