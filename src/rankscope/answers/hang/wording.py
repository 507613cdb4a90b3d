"""The sentences of a verdict: its summary, and what to record where something is not known.

In: a verdict. Out: text.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.answers.hang.arrivals import ROOTED
from rankscope.answers.hang.causes import FAILED, Cause
from rankscope.answers.hang.verdict import HangVerdict, HungCollective, RankVerdict, WaitInCycle
from rankscope.rundir.plurals import listed, plural
from rankscope.rundir.ranges import named_ranks

_LINE = 120
"""Characters of an exception's text."""
_STACKS = (
    "Python stacks of all ranks: start the job with rankscope.HangWatch, or run `py-spy dump --pid PID` on the host of "
    "{ranks}"
)
_DUMPS = (
    "the dump of {ranks}: TORCH_NCCL_DUMP_ON_TIMEOUT=1 and a TORCH_NCCL_DEBUG_INFO_TEMP_FILE that every host can write"
)
_ABSENT = (
    "the output of {ranks}, and `py-spy dump --pid PID` on the host if the process exists: it has not come that far, "
    "cannot reach MASTER_ADDR, or is not watched (--ranks)"
)
_CALLS = "the collectives: TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.9) in {ranks}"
_NETWORK = (
    "NCCL's own log (NCCL_DEBUG=WARN, rankscope doctor --log) and the state of the devices (dmesg, nvidia-smi): "
    "the ranks agree, so what is below them does not work"
)
_WHY = {
    Cause.DATA_LOADING: "waiting for data",
    Cause.HOST_SYNCHRONIZATION: "waiting for the device in a synchronizing call",
    Cause.PYTHON_CODE: "in Python code outside of torch.distributed",
    Cause.EXCEPTION: "out of step after an exception",
    Cause.ENDED: "no longer in the training loop",
    Cause.DEAD: "dead or frozen",
    Cause.DEVICE: "stopped: the device has not finished what the others have",
    Cause.ABSENT: "missing from init_process_group, where the others wait, and without a dump or heartbeat",
    Cause.NETWORK: "waiting for the job's store",
    Cause.UNKNOWN: "missing; why is not known",
}


def first_line(text: str) -> str:
    """The first line of an exception's text, for a table or a sentence: Gloo's take several hundred characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    cut = line if len(line) <= _LINE else line[: _LINE - 1].rstrip()
    return cut if cut == text.strip() else f"{cut}…"


def collective_text(collective: HungCollective) -> str:
    """``all_reduce 12 of group 0 (default_pg)``."""
    named = f" ({collective.description})" if collective.description not in ("", "undefined") else ""
    return f"{collective.operation or 'operation'} {collective.sequence} of group {collective.group}{named}"


def wait_text(wait: WaitInCycle) -> tuple[str, str]:
    """``ranks 0,2`` and ``wait for rank 1 in all_reduce 12 of group 0``."""
    collective = wait.collective
    together = wait.rank in collective.arrived and wait.waits_for in collective.missing
    if collective.operation not in ROOTED and together:
        ranks, others = collective.arrived, collective.missing
    else:
        ranks, others = (wait.rank,), (wait.waits_for,)
    verb = "waits" if len(ranks) == 1 else "wait"
    return named_ranks(ranks), f"{verb} for {named_ranks(others)} in {collective_text(collective)}"


def summary_of(verdict: HangVerdict) -> str:
    """The verdict in one sentence."""
    return f"Over, the ranks have made steps since: {_summary(verdict)}" if verdict.over else _summary(verdict)


def _summary(verdict: HangVerdict) -> str:
    if verdict.ended_by:
        return f"No hang found: the job was ended by {verdict.ended_by}."
    if not verdict.found:
        return "No hang found: no rank waits for another one."
    where = collective_text(verdict.collective) if verdict.collective else ""
    if verdict.cause is Cause.DEADLOCK:
        return f"Deadlock: {listed([' '.join(wait_text(wait)) for wait in verdict.cycle])}."
    if verdict.variants:
        return _mismatch(verdict)
    if verdict.cause is Cause.NETWORK and not verdict.culprits:
        return (
            f"All ranks of the group arrived at {where} and agree on it, and it does not complete: network or device."
        )
    if not verdict.culprits:
        return "The job makes no step; which rank is at fault is not known."
    states = _states(verdict)
    at_once = f"{states[0].upper()}{states[1:]}"
    failed = any(_has_failed(rank) for rank in verdict.ranks if rank.rank in verdict.culprits)
    if (verdict.cause is Cause.DEAD or failed) and where:
        return f"{at_once}; other ranks wait in {where}."
    if verdict.collective is None:
        return f"{at_once}."
    if missing := tuple(rank for rank in verdict.culprits if rank in verdict.collective.missing):
        return f"{named_ranks(missing).capitalize()} did not arrive at {where}: {states}."
    if set(verdict.culprits) <= set(verdict.collective.unknown):
        who, others = named_ranks(verdict.culprits).capitalize(), "the ranks with dumps have all arrived"
        return f"{who} may not have arrived at {where} ({others}): {states}."
    return f"{at_once}, in {where}."


def _states(verdict: HangVerdict) -> str:
    """``rank 1 is waiting for data, at main (train.py:19)``, and so on for culprits with another cause."""
    known = {rank.rank: rank for rank in verdict.ranks}
    by_cause: dict[Cause, list[int]] = {}
    unseen = Cause.ABSENT if verdict.cause is Cause.ABSENT else Cause.UNKNOWN
    for rank in verdict.culprits:
        cause = known[rank].cause if rank in known else unseen
        by_cause.setdefault(cause, []).append(rank)
    first = [verdict.cause] if verdict.cause in by_cause else []
    parts = []
    for cause in dict.fromkeys((*first, *by_cause)):
        ranks = by_cause[cause]
        seen = [known[rank] for rank in ranks if rank in known]
        if seen and _has_failed(seen[0]):
            parts.append(f"{named_ranks(ranks)} {first_line(seen[0].evidence)}{_at(seen)}")
        else:
            parts.append(f"{named_ranks(ranks)} {plural('is', len(ranks), 'are')} {_reason(cause, seen)}")
    return listed(parts)


def _has_failed(rank: RankVerdict) -> bool:
    """Whether an exception has ended a rank."""
    return rank.cause is Cause.EXCEPTION and rank.evidence.startswith(FAILED)


def _reason(cause: Cause, ranks: Sequence[RankVerdict]) -> str:
    """Why, with the evidence and the place of the first of these ranks."""
    if not ranks:
        return _WHY[cause]
    if cause is Cause.COMMUNICATION:  # one that the Flight Recorder does not have, else the rank would wait in it
        what = ranks[0].evidence.removeprefix("is ").replace("waits ", "waiting ", 1)
        return f"{what}, which is in no dump{_at(ranks)}"
    detail = f" ({first_line(ranks[0].evidence)})" if cause in (Cause.EXCEPTION, Cause.DEAD) else ""
    return f"{_WHY[cause]}{detail}{_at(ranks)}"


def _at(ranks: Sequence[RankVerdict]) -> str:
    """Where these ranks are; where the first is, if they are in several places."""
    place = ranks[0].place
    if place is None:
        return ""
    of = "" if all(rank.place == place for rank in ranks) else f" (rank {ranks[0].rank})"
    return f", at {place}{of}"


def _mismatch(verdict: HangVerdict) -> str:
    assert verdict.collective is not None
    parts = []
    for variant in verdict.variants:
        what = variant.operation or "an operation"
        if verdict.mismatch != "operation":
            what += f" of {variant.elements:,} {variant.dtype or ''}".rstrip() + " elements"
        at = f" at {variant.called_at}" if variant.called_at else ""
        parts.append(f"{named_ranks(variant.ranks)} called {what}{at}")
    group = verdict.collective.group
    text = f"The ranks disagree on operation {verdict.collective.sequence} of group {group}: {listed(parts)}"
    if verdict.cause is Cause.EXCEPTION:
        text += f"; {_states(verdict)}"
    return f"{text}."


def advice_for(verdict: HangVerdict, without_calls: tuple[int, ...] = ()) -> tuple[str, ...]:
    """What to record next time to find out what is unknown.

    Args:
        verdict: without its advice.
        without_calls: ranks with a dump that has no calls of the Flight Recorder.
    """
    if not verdict.found:
        return ()
    advice = []
    by_rank = {rank.rank: rank for rank in verdict.ranks}
    no_dump = tuple(rank for rank in verdict.culprits if rank in verdict.without_dump)
    no_stack = tuple(r for r in verdict.culprits if r not in no_dump and r in by_rank and not by_rank[r].stack)
    if verdict.cause is Cause.ABSENT:
        return (_ABSENT.format(ranks=named_ranks(verdict.culprits)),)
    if no_dump and verdict.cause is Cause.UNKNOWN:
        advice.append(_DUMPS.format(ranks=named_ranks(no_dump)))
    if no_stack and verdict.cause in (Cause.UNKNOWN, Cause.DEVICE, Cause.MISMATCH):
        advice.append(_STACKS.format(ranks=named_ranks(no_stack)))
    lacks_calls = without_calls or not verdict.dumps
    if lacks_calls and verdict.collective is None and verdict.cause not in (Cause.DEAD, Cause.EXCEPTION, Cause.ENDED):
        ranks = "all ranks" if len(without_calls) == verdict.dumps else named_ranks(without_calls)
        advice.append(_CALLS.format(ranks=ranks))
    if verdict.cause is Cause.DEVICE or (verdict.cause is Cause.NETWORK and not verdict.culprits):
        advice.append(_NETWORK)
    return tuple(advice)
