"""The sentences of a verdict: its summary, and what to record where something is not known.

In: a verdict. Out: text.
"""

from __future__ import annotations

from rankscope.hang.arrivals import ROOTED
from rankscope.hang.causes import Cause
from rankscope.hang.verdict import HangVerdict, HungCollective, RankVerdict, WaitInCycle
from rankscope.rundir.plurals import listed, plural
from rankscope.rundir.ranges import as_ranges

_STACKS = (
    "Python stacks of all ranks: start the job with rankscope.HangWatch, or run `py-spy dump --pid PID` on the host of "
    "{ranks}"
)
_DUMPS = (
    "the dump of {ranks}: TORCH_NCCL_DUMP_ON_TIMEOUT=1 and a TORCH_NCCL_DEBUG_INFO_TEMP_FILE that every host can write"
)
_CALLS = "the collectives: TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.9) in all ranks"
_NETWORK = (
    "NCCL's own log (NCCL_DEBUG=WARN, rankscope doctor --log) and the state of the devices (dmesg, nvidia-smi): "
    "the ranks agree, so what is below them does not work"
)
_WHY = {
    Cause.DATA_LOADING: "waiting for data",
    Cause.HOST_SYNCHRONIZATION: "waiting for the device in a synchronizing call",
    Cause.PYTHON_CODE: "in Python code that does not communicate",
    Cause.EXCEPTION: "out of step after an exception",
    Cause.ENDED: "no longer in the training loop",
    Cause.DEAD: "dead or frozen",
    Cause.DEVICE: "stopped: the device has not finished what the others have",
    Cause.NETWORK: "waiting for the job's store",
    Cause.UNKNOWN: "missing; why is not known",
}


def ranks_text(ranks: tuple[int, ...]) -> str:
    """``rank 3``, ``ranks 0-3,7``."""
    return f"{plural('rank', len(ranks))} {as_ranges(ranks)}"


def first_line(text: str, limit: int = 120) -> str:
    """The first line of an exception's text, for a table or a sentence: Gloo's take several hundred characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    cut = line if len(line) <= limit else line[: limit - 1].rstrip()
    return cut if cut == text.strip() else f"{cut}…"


def collective_text(collective: HungCollective) -> str:
    """``all_reduce 12 of group 0 (default_pg)``."""
    named = f" ({collective.description})" if collective.description not in ("", "undefined") else ""
    return f"{collective.operation or 'operation'} {collective.sequence} of group {collective.group}{named}"


def wait_text(wait: WaitInCycle) -> tuple[str, str]:
    """``ranks 0,2`` and ``wait for rank 1 in all_reduce 12 of group 0``."""
    collective = wait.collective
    ranks, others = (wait.rank,), (wait.waits_for,)
    if collective.operation not in ROOTED and ranks[0] in collective.arrived and others[0] in collective.missing:
        ranks, others = collective.arrived, collective.missing
    verb = "waits" if len(ranks) == 1 else "wait"
    return ranks_text(ranks), f"{verb} for {ranks_text(others)} in {collective_text(collective)}"


def summary_of(verdict: HangVerdict) -> str:
    """The verdict in one sentence."""
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
    who, many = ranks_text(verdict.culprits), len(verdict.culprits) > 1
    why = _reason(verdict)
    verb = "are" if many else "is"
    if verdict.cause is Cause.DEAD and where:
        return f"{who.capitalize()} {verb} {why}; other ranks wait in {where}."
    if not where:
        return f"{who.capitalize()} {verb} {why}."
    if verdict.collective and set(verdict.culprits) & set(verdict.collective.missing):
        missing = tuple(rank for rank in verdict.culprits if rank in verdict.collective.missing)
        return f"{ranks_text(missing).capitalize()} did not arrive at {where}: {who} {verb} {why}."
    if verdict.collective and set(verdict.culprits) <= set(verdict.collective.unknown):
        others = "the ranks with dumps have all arrived"
        return f"{who.capitalize()} may not have arrived at {where} ({others}): {verb} {why}."
    return f"{who.capitalize()} {verb} {why}, in {where}."


def _reason(verdict: HangVerdict) -> str:
    for rank in verdict.ranks:
        if rank.rank in verdict.culprits and rank.cause is verdict.cause:
            detail = f" ({first_line(rank.evidence)})" if verdict.cause in (Cause.EXCEPTION, Cause.DEAD) else ""
            return f"{_WHY.get(verdict.cause, verdict.cause.value)}{detail}{_place(rank)}"
    return _WHY.get(verdict.cause, verdict.cause.value)


def _place(rank: RankVerdict) -> str:
    return f", at {rank.place}" if rank.place else ""


def _mismatch(verdict: HangVerdict) -> str:
    assert verdict.collective is not None
    parts = []
    for variant in verdict.variants:
        what = variant.operation or "an operation"
        if verdict.mismatch != "operation":
            what += f" of {variant.elements:,} {variant.dtype or ''}".rstrip() + " elements"
        at = f" at {variant.called_at}" if variant.called_at else ""
        parts.append(f"{ranks_text(variant.ranks)} called {what}{at}")
    group = verdict.collective.group
    text = f"The ranks disagree on operation {verdict.collective.sequence} of group {group}: {listed(parts)}"
    if verdict.cause is Cause.EXCEPTION:
        text += f"; {ranks_text(verdict.culprits)} {plural('is', len(verdict.culprits), 'are')} {_reason(verdict)}"
    return f"{text}."


def advice_for(verdict: HangVerdict) -> tuple[str, ...]:
    """What to record next time to find out what is unknown."""
    if not verdict.found:
        return ()
    advice = []
    by_rank = {rank.rank: rank for rank in verdict.ranks}
    no_dump = tuple(rank for rank in verdict.culprits if rank in verdict.without_dump)
    no_stack = tuple(r for r in verdict.culprits if r not in no_dump and r in by_rank and not by_rank[r].stack)
    if no_dump and verdict.cause is Cause.UNKNOWN:
        advice.append(_DUMPS.format(ranks=ranks_text(no_dump)))
    if no_stack and verdict.cause in (Cause.UNKNOWN, Cause.DEVICE, Cause.MISMATCH):
        advice.append(_STACKS.format(ranks=ranks_text(no_stack)))
    if verdict.collective is None and verdict.cause not in (Cause.DEAD, Cause.EXCEPTION):
        advice.append(_CALLS)
    if verdict.cause is Cause.DEVICE or (verdict.cause is Cause.NETWORK and not verdict.culprits):
        advice.append(_NETWORK)
    return tuple(advice)
