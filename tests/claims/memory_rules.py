"""Claims about memory: from the allocations that a trace records."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import defaultdict

from tests.claims.claim import Claim, number_in
from tests.claims.host_rules import launches_by_step
from tests.claims.raw import Allocation, File, Raw
from tests.claims.registry import checks

MALLOC = re.compile(
    r"^(cuda|hip)(Malloc|MallocManaged|ExtMallocWithFlags)$|^zeMemAlloc(Device|Shared)$"
    r"|^cuMemAlloc(Managed|Pitch)?(_v2)?$|^(cu|hip)MemCreate$|^(ur|piext)USM(Device|Shared)Alloc$",
    re.IGNORECASE,
)
FREE = re.compile(
    r"^(cuda|hip)Free$|^zeMemFree$|^cuMemFree(_v2)?$|^(cu|hip)MemRelease$|^(ur|piext)USMFree$", re.IGNORECASE
)
PINNED = re.compile(
    r"^(cuda|hip)(HostAlloc|HostMalloc|MallocHost|FreeHost|HostFree|Host(Unr|R)egister)$"
    r"|^zeMemAllocHost$|^(ur|piext)USMHostAlloc$",
    re.IGNORECASE,
)


def total_memory(file: File, device: str) -> int | None:
    index = device.partition(":")[2]
    for each in file.devices:
        if str(each.get("id")) == index and each.get("totalGlobalMem"):
            return int(each["totalGlobalMem"])
    return None


def by_device(raw: Raw) -> dict[tuple[int, str, int], tuple[File, list[Allocation]]]:
    """Allocations by rank, device and file."""
    found = {}
    for rank, files in raw.files.items():
        for place, file in enumerate(files):
            mine = defaultdict(list)
            for each in file.allocations:
                mine[each.device].append(each)
            for device, rows in mine.items():
                found[rank, device, place] = file, rows
    return found


@checks("memory_limit")
def memory_limit(claim: Claim, raw: Raw) -> None:
    """The trace has a sample with this much allocated, and gives the device this much memory."""
    shares = {}
    for (rank, device, place), (file, rows) in by_device(raw).items():
        size = total_memory(file, device)
        known = [each for each in rows if each.allocated is not None]
        if size and known:
            top = max(known, key=lambda each: each.allocated)
            shares[rank, device, place] = top.allocated / size, top, size, file
    share, top, size, file = max(shares.values(), key=lambda each: each[0])
    claim.is_near("allocated at the peak", top.allocated, within=0)
    claim.is_near("memory of the device", size, within=0)
    name = claim.take("operator at the peak").value
    inside = [e for e in file.plain.operators if e.start <= top.at < e.end]
    claim.require(name == "no operator" or name in {e.name for e in inside}, f"the peak is not in {name}")
    claim.require(f"{100 * share:.0f} %" in claim.finding.title, "the title's share")
    claim.is_ranks({rank for (rank, _, _), row in shares.items() if row[0] >= 0.85})
    step = file.step_at(top.at)
    claim.require(claim.finding.steps == (() if step is None else (step,)), f"the peak is in step {step}")


@checks("memory_growth")
def memory_growth(claim: Claim, raw: Raw) -> None:
    """Each of these steps ends with more allocated than the one before it."""
    growing: dict[int, float] = {}
    for (rank, device, _), (file, rows) in by_device(raw).items():
        change, ends = 0, {}
        for each in rows:
            change += each.bytes
            number = file.step_at(each.at)
            if number is not None:
                ends[number] = change
        order = list(ends)
        growth = [ends[b] - ends[a] for a, b in itertools.pairwise(order[1:])]
        if len(growth) >= 3 and min(growth) > 0:
            growing[rank] = max(growing.get(rank, 0), statistics.median(growth))
            if claim.has(f"growth per step, rank {rank}, {device}"):
                said = claim.is_near("growth per step", statistics.median(growth))
                claim.is_near("steps in a row", len(growth))
                known = [each.allocated for each in rows if each.allocated is not None]
                highest = max(known) if known else max(_running(rows))
                claim.is_near("peak", highest)
                claim.require(list(claim.finding.steps) == sorted(order[2:]), f"steps {order[2:]}")
                if claim.has("steps until the device is full"):
                    room = (total_memory(file, device) or 0) - highest
                    claim.is_near("steps until the device is full", room / said, within=1)
    claim.require(growing, "no device grows in every step")
    claim.is_ranks(growing)
    said_mb = re.search(r"by ([\d.,e-]+) MB", claim.finding.title)
    claim.require(said_mb, "the title's growth")
    assert said_mb is not None
    claim.same(number_in(said_mb[1]), max(growing.values()) / 1e6, "the title's growth", relative=0.006, within=0)


def _running(rows: list[Allocation]) -> list[int]:
    found, change = [0], 0
    for each in rows:
        change += each.bytes
        found.append(change)
    return found


@checks("memory_retries")
def memory_retries(claim: Claim, raw: Raw) -> None:
    """The device is idle before a late launch while the host is in such calls, of which there are this many."""
    every = {rank: launches_by_step(raw, rank, ()) for rank in raw.ranks}
    idle = {r: {n: row["allocator_ns"] for (_, n), row in rows.items()} for r, rows in every.items()}
    usual = {rank: statistics.median(costs.values()) for rank, costs in idle.items() if costs}
    step = raw.step_ns()
    for name in ("step time (median, slowest rank)", "recorded span (slowest rank)"):
        if claim.has(name):
            claim.is_near(name, step)
    rank = int(next(e.name for e in claim.left if e.name.startswith("the driver's")).rsplit(" ", 1)[1])
    wanted = claim.finding.steps
    windows = raw.windows(rank, wanted or None)
    calls = [c.name for f, _, a, b in windows for c in f.plain.calls if a <= c.start < b]
    for name, pattern in (("free", FREE), ("malloc", MALLOC), ("calls for pinned", PINNED)):
        if claim.has(f"the driver's {name}"):
            claim.is_near(f"the driver's {name}", sum(bool(pattern.search(each)) for each in calls))
    if claim.has("device idle in driver calls for memory, step "):
        (number,) = re.findall(r"step (\d+)$", claim.left[0].name)
        claim.is_near("device idle in driver calls for memory", idle[rank][int(number)])
        slow = {n for n, cost in idle[rank].items() if cost >= 0.05 * step}
        said = str(claim.take("steps that lose 5 %").value)
        claim.require(said.endswith(f" of {len(raw.steps)}") and int(said.split()[0]) <= len(slow), f"steps {slow}")
        claim.require(slow >= set(wanted) or len(raw.ranks) > 1, f"steps {slow}")
        claim.require(claim.finding.saving_ns is None, "nobody knows how often such steps come")
    elif claim.has("device idle in driver calls for memory"):
        claim.is_near("device idle in driver calls for memory", usual[rank])
        claim.require(usual[rank] >= max(usual.values()) - 1.5, "another rank waits longer")
        claim.require((claim.finding.saving_ns or 0) <= usual[rank] + 1.5, "the saving is more than is idle")
    else:
        claim.require(claim.finding.saving_ns is None, "a saving without a cost")


@checks("memory_fragmentation")
def memory_fragmentation(claim: Claim, raw: Raw) -> None:
    """The snapshot's free blocks, or the trace's reserved and allocated bytes, are these."""
    if claim.has("largest free block"):
        names = ("free in segments", "free in all", "largest free block", "reserved", "requests that failed")
        for name in names:
            claim.take(name)  # of a pickle, which nobody reads without rankscope: its own tests work it out by hand
        return
    found = {}
    for (rank, device, _), (file, rows) in by_device(raw).items():
        size = total_memory(file, device)
        known = [each for each in rows if each.reserved is not None and device != "cpu"]
        if size and known:
            top = max(each.reserved for each in known)
            held = [each for each in known if each.reserved == top][-1]
            found[rank] = top, (top - (held.allocated or 0)) / top, size
    (rank,) = claim.finding.ranks
    top, unused, size = found[rank]
    claim.is_near("reserved", top, within=0)
    claim.is_near("share of reserved memory not allocated", unused, within=1e-6)
    claim.is_near("memory of the device", size, within=0)
    claim.require(unused >= 0.2 and top / size >= 0.85, "it is in use, or there is room")
    claim.require(f"{100 * unused:.0f} %" in claim.finding.title, "the title's share")
