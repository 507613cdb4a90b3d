"""Claims about files and runs: which ranks there are, which are missing, what a file has lost."""

from __future__ import annotations

import re
import statistics

from tests.claims.claim import Claim
from tests.claims.raw import Raw
from tests.claims.registry import checks
from tests.claims.spans import within


@checks("missing-ranks")
def missing_ranks(claim: Claim, raw: Raw) -> None:
    claim.is_near("ranks in the job", raw.world)
    present = sum(rank < raw.world for rank in raw.ranks)
    claim.is_near("ranks read", present)
    claim.is_ranks(set(range(raw.world)) - set(raw.ranks))
    if claim.has("profiled ranks"):
        claim.take("profiled ranks")


@checks("not-diagnosed")
def not_diagnosed(claim: Claim, raw: Raw) -> None:
    claim.require(False, "a rule or an analysis failed")


@checks(
    "trace-oddities",
    "trace-truncated",
    "trace-damaged",
    "trace-empty",
    "unknown-categories",
    "device-events-lost",
    "rank-guessed",
    "window-gap",
)
def of_files(claim: Claim, raw: Raw) -> None:
    """What the reading of files reports is tested where files are read; here, only that its ranks have files."""
    claim.require(set(claim.finding.ranks) <= set(raw.ranks), "ranks without files")
    claim.left.clear()


@checks("incomplete-step")
def incomplete_step(claim: Claim, raw: Raw) -> None:
    """These steps, the first or the last of their files, have no backward pass where most of the others have one; else
    less than a quarter of their events or of their time."""
    steps = {rank: set().union(*(file.incomplete for file in files)) for rank, files in raw.files.items()}
    claim.require(set(claim.finding.steps) == set().union(*steps.values()), f"steps {steps}")
    claim.is_ranks(rank for rank, own in steps.items() if own)
    counts: dict[int, dict[int, int]] = {}
    lengths = {}
    kept_work: dict[int, list[tuple[int, int, bool]]] = {}
    left_out: list[tuple[int, tuple[int, int, bool]]] = []
    for rank, files in raw.files.items():
        for file in files:
            trace = file.plain
            instants = [o.start for o in trace.operators if o.depth == 0]
            instants += [e.launch for e in trace.device if e.launch is not None]
            working = [at for at in instants if not within(file.loading, at, at + 1)]
            found = {n: sum(start <= at < end for at in working) for n, start, end in file.all_steps}
            lengths.update({(rank, n): end - start for n, start, end in file.all_steps})
            counts.setdefault(rank, {}).update(found)
            numbers = [number for number, _, _ in file.all_steps]
            kept = [number for number in numbers if number not in file.incomplete]
            if kept:
                between = numbers[numbers.index(kept[0]) : numbers.index(kept[-1]) + 1]
                claim.require(between == kept, "a step in the middle")
            for n, start, end in file.all_steps:
                own = [o for o in trace.operators if o.depth == 0 and start <= o.start < end]
                own = [o for o in own if not within(file.loading, o.start, o.start + 1)]
                worked = [e for e in trace.device if e.launch is not None and start <= e.launch < end] or own
                backward = any("Backward" in o.name or o.name.startswith("autograd::") for o in own)
                work = found[n], sum(e.end - e.start for e in worked), backward
                if n in file.incomplete:
                    left_out.append((rank, work))
                else:
                    kept_work.setdefault(rank, []).append(work)
    for rank, (number, ns, backward) in left_out:
        others = kept_work[rank]
        if sum(trains for _, _, trains in others) * 2 > len(others):
            claim.require(not backward, f"a backward pass on rank {rank}")
        else:
            few = number < max(0.25 * statistics.median(n for n, _, _ in others), 1)
            claim.require(few or ns < 0.25 * statistics.median(t for _, t, _ in others), f"as much work: {number}")
    while claim.left:
        each = claim.left[0]
        rank = int(m[1]) if (m := re.match(r"rank (\d+), ", each.name)) else min(raw.ranks)
        step = int(m[1]) if (m := re.search(r"step (\d+):", each.name)) else None
        if step is None:
            value = claim.number(each.name)
            low, high = min(counts[rank].values()), max(counts[rank].values())
            claim.require(low <= value <= high, f"the others have {counts[rank]} events")
        elif "duration" in each.name:
            claim.is_near(each.name, lengths[rank, step])
        else:
            claim.is_near(each.name, counts[rank][step])
