"""Claims about the host: it is late, it waits, it loads data, it collects garbage, it compiles."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from tests.claims.claim import MEAN_STEP, Claim
from tests.claims.raw import WAITS, File, Raw, mean
from tests.claims.registry import checks
from tests.claims.spans import Span, between, common, length, less, union, within
from tests.plain_per_rank import device_of
from tests.plain_reading import Event

MEMORY = re.compile(
    r"^(cuda|hip)(Malloc|MallocManaged|ExtMallocWithFlags|Free)$|^zeMem(AllocDevice|AllocShared|Free)$"
    r"|^cuMem(Alloc|AllocManaged|AllocPitch|Free)(_v2)?$|^(cu|hip)Mem(Create|Release|Map|Unmap|SetAccess)$"
    r"|^(cuda|hip)(HostAlloc|HostMalloc|MallocHost|FreeHost|HostFree|HostRegister|HostUnregister)$"
    r"|^zeMemAllocHost$|^(ur|piext)USM(DeviceAlloc|SharedAlloc|HostAlloc|Free)$",
    re.IGNORECASE,
)
"""Calls into the driver for memory that do not return at once."""
SHORT, SHORT_OPERATOR, SILENCE, STANDSTILL = 10_000, 20_000, 100_000, 10_000_000
WORTH = 0.01
"""Of a step: what is worth a finding."""


def step_of(claim: Claim, raw: Raw) -> float:
    """The step, or recorded span, that a finding gives as its denominator, recomputed."""
    step = raw.mean_step_ns() if claim.of_mean else raw.step_ns(claim.finding.steps or None)
    for name in ("step time (median, slowest rank)", "recorded span (slowest rank)", MEAN_STEP):
        if claim.has(name):
            claim.is_near(name, step)
    return step


def recurs(claim: Claim, happened: int, steps: int) -> bool:
    """Whether what happened in so many of a rank's steps is part of a mean: in half of them or more, or in two."""
    claim.require(claim.of_mean or not claim.finding.steps, "a mean is compared with the median step")
    return 2 * happened >= steps or happened >= 2


def worst_of(claim: Claim, by_rank: Mapping[int, float]) -> int:
    """The rank with most, which the title must name where it names one."""
    worst = max(by_rank, key=lambda rank: (round(by_rank[rank]), -rank))
    named = claim.named_rank()
    claim.require(named is None or by_rank[named] >= by_rank[worst] - 1.5, f"rank {worst} has more than {named}")
    return worst if named is None else named


def worth_it(by_rank: Mapping[int, float], step: float) -> list[int]:
    return [rank for rank, value in by_rank.items() if round(value) >= WORTH * step]


def saves(claim: Claim, wanted: float, step: float) -> None:
    """The saving is what was recomputed, and at most the step."""
    saving = claim.finding.saving_ns
    claim.require(saving is not None, "no saving")
    claim.same(float(saving or 0), wanted, "the saving")
    claim.require((saving or 0) <= step + 1, f"the saving of {saving} exceeds the step of {step}")


def left_out_steps(claim: Claim, of_steps: Mapping[int | None, float], step: float) -> None:
    """Steps that a median leaves out, where the finding names some: they cost this much at most, and stand out."""
    while claim.has("left out as unusual"):
        each = claim.take("left out as unusual")
        usual = statistics.median(of_steps.values())
        more = {n: cost for n, cost in of_steps.items() if cost > 2 * usual and cost > usual + 0.05 * step}
        claim.same(float(each.value), max(more.values()), "the steps left out")
        shown = {int(n) for n in re.findall(r"\d+", each.name.partition(":")[2].partition(" more")[0])}
        claim.require(shown & set(more), f"steps {each.name}, recomputed {more}")


@checks("data_loading")
def data_loading(claim: Claim, raw: Raw) -> None:
    """The device is idle, no runtime call is open, and a range that loads data is."""
    if re.search(r"waits for data in \d+ of \d+ steps", claim.finding.title):
        data_loading_in_bursts(claim, raw)
        return
    loading = {rank: raw.per_step(rank, "data_loading", claim.finding.steps) for rank in raw.ranks}
    step = step_of(claim, raw)
    worst = worst_of(claim, loading)
    claim.is_near("data loading, nothing else running", loading[worst])
    claim.is_near("mean over ranks", mean(loading))
    windows = raw.windows(worst, claim.finding.steps or None)
    left_out_steps(claim, {n: file.part("data_loading", a, b) for file, n, a, b in windows}, step)
    saves(claim, loading[worst], step)
    claim.is_ranks(worth_it(loading, step))
    claim.share(step)


def mean_step_and_worst(claim: Claim, raw: Raw) -> tuple[int, int]:
    """Of a finding about some steps: the mean step, which it names, and the rank with the most."""
    claim.require(claim.of_mean, "no mean step")
    step = raw.mean_step_ns()
    claim.is_near(MEAN_STEP, step)
    worst = claim.named_rank() if claim.named_rank() is not None else min(claim.finding.ranks)
    assert worst is not None
    return step, worst


def data_loading_in_bursts(claim: Claim, raw: Raw) -> None:
    """Several steps wait for data, and most do not."""
    step, worst = mean_step_and_worst(claim, raw)
    waits = {n: file.part("data_loading", a, b) for file, n, a, b in raw.windows(worst)}
    slow = {n: wait for n, wait in waits.items() if wait >= 0.05 * raw.step_ns()}
    claim.require(set(claim.finding.steps) == set(slow) and len(slow) > 1, f"steps {slow}")
    claim.is_near("data loading, nothing else running", sum(slow.values()))
    per = claim.is_near("mean over all steps", sum(slow.values()) / len(waits))
    claim.require(f"in {len(slow)} of {len(waits)} steps" in claim.finding.title, "the title's steps")
    saves_at_most(claim, per, step)


# -- late launches ---------------------------------------------------------------------------------------------------


def short_pieces(file: File) -> set[int]:
    """Pieces of work, by id, that last as long as launching them."""
    counted = file.computing if file.on_device else file.pieces
    if file.on_device:
        return {id(event) for event in counted if event.end - event.start < SHORT}
    lengths = defaultdict(list)
    for event in counted:
        lengths[event.name].append(event.end - event.start)
    usual = {name: statistics.median(found) for name, found in lengths.items()}
    return {id(event) for event in counted if usual[event.name] < SHORT_OPERATOR}


def left_out(file: File) -> list[Span]:
    """Time that no faster launch would save: loading, waiting for the device, a host that records nothing."""
    silent = [gap for gap in between(file.recorded) if gap[1] - gap[0] > SILENCE]
    host_only = [] if file.on_device else file.layers["exposed_communication"]
    return union(file.loading, file.waiting, host_only, silent, long_time(file), memory_time(file))


def own_long_time(file: File) -> list[Span]:
    """Of it, what has no other owner."""
    silent = [gap for gap in between(file.recorded) if gap[1] - gap[0] > SILENCE]
    return less(long_time(file), union(file.loading, file.waiting, silent, memory_time(file)))


def long_time(file: File) -> list[Span]:
    """When the host is in a call of more than 100 µs, or in a first call: an operator or so of 10 ms that is rare."""
    long = [call.span for call in file.plain.calls if call.end - call.start > SILENCE]
    instants = sorted({at for event in [*file.plain.operators, *file.plain.calls] for at in event.span})
    stands = [span for span in pairwise(instants) if span[1] - span[0] > STANDSTILL]
    with_one = {file.step_at(span[0]) for span in stands} - {None}
    rare = len(with_one) <= max(len(file.plain.steps) / 4, 1)
    return union(long, stands if rare else [])


EXPLAINED = re.compile(
    r"^gc: generation |^Python GC$|^gloo:|dynamo_timed\)$|^entire_(frame|backward)_compile|^inductor_compile$"
    r"|^(TorchDynamo Cache Lookup|AOTDispatcher Runtime Wrapper Prologue|Pregraph bytecode)"
)
"""Ranges of the host with rules of their own."""


def silent_time(file: File) -> list[Span]:
    """When the host records neither an operator nor a call for longer than a launch takes, and no range says why."""
    if not file.plain.operators:
        return []
    silent = [gap for gap in between(file.recorded) if gap[1] - gap[0] > SILENCE]
    named = union(event.span for event in file.plain.named if EXPLAINED.search(event.name))
    return less(silent, union(file.loading, named))


def memory_time(file: File) -> list[Span]:
    """When the host allocates or frees memory in the driver."""
    return union(call.span for call in file.plain.calls if MEMORY.search(call.name))


def late_gaps(file: File) -> list[tuple[Event, Span]]:
    """Pieces that were launched when nothing ran any more, and the gaps before them."""
    found: list[tuple[Event, Span]] = []
    reached: int | None = None
    for event in sorted(file.pieces, key=lambda each: each.start):
        launch = event.launch if file.on_device else event.start
        if reached is not None and event.start > reached and launch is not None and launch > reached:
            found.append((event, (reached, event.start)))
        reached = event.end if reached is None else max(reached, event.end)
    return found


def windows_of_pieces(raw: Raw, rank: int, steps: tuple[int, ...]) -> list[tuple[File, int | None, int, int]]:
    """A rank's windows; of a file without steps, from its first piece of work to its last."""
    found = []
    for file, number, begin, end in raw.windows(rank, steps or None):
        if number is None and file.pieces:
            begin, end = min(e.start for e in file.pieces), max(e.end for e in file.pieces)
        found.append((file, number, begin, end))
    return found


def launches(raw: Raw, rank: int, steps: tuple[int, ...]) -> dict[str, float]:
    """Medians over a rank's steps: pieces, short ones and their time, gaps before late ones, before short late ones."""
    rows = launches_by_step(raw, rank, steps)
    if not rows:
        return {}
    return {name: statistics.median(row[name] for row in rows.values()) for name in next(iter(rows.values()))}


def launches_by_step(raw: Raw, rank: int, steps: tuple[int, ...]) -> dict[tuple[int, int | None], dict[str, float]]:
    """The same by file and step."""
    rows: dict[tuple[int, int | None], dict[str, float]] = {}
    gaps = {id(file): late_gaps(file) for file in raw.files[rank]}
    unavoidable = {id(file): left_out(file) for file in raw.files[rank]}
    memory = {id(file): memory_time(file) for file in raw.files[rank]}
    silence = {id(file): silent_time(file) for file in raw.files[rank]}
    long = {id(file): own_long_time(file) for file in raw.files[rank]}
    ends = {id(file): [(a, b) for _, a, b in file.windows] for file in raw.files[rank]}
    shorts = {id(file): short_pieces(file) for file in raw.files[rank]}
    for file, number, begin, end in windows_of_pieces(raw, rank, steps):
        counted = file.computing if file.on_device else file.pieces
        own = [event for event in counted if begin <= event.start < end]
        short = [event for event in own if id(event) in shorts[id(file)]]
        # Before a piece of some step, or of a file without steps.
        late = [
            (event, gap)
            for event, gap in gaps[id(file)]
            if number is None or any(a <= event.start < b for a, b in ends[id(file)])
        ]
        free = unavoidable[id(file)]
        brief = [
            gap
            for event, gap in late
            if id(event) in shorts[id(file)] and gap[1] - gap[0] - within(free, *gap) <= SILENCE
        ]
        row = {
            "pieces": len(own),
            "short": len(short),
            "short_ns": sum(event.end - event.start for event in short),
            "late_ns": within(less(union(gap for _, gap in late), free), begin, end),
            "late_short_ns": within(less(union(brief), free), begin, end),
            "silent_ns": within(common(union(gap for _, gap in late), silence[id(file)]), begin, end),
            "long_ns": within(common(union(gap for _, gap in late), long[id(file)]), begin, end),
            "allocator_ns": within(common(union(gap for _, gap in late), memory[id(file)]), begin, end),
        }
        rows[id(file), number] = {**row, "cost": row["short_ns"] + row["late_short_ns"]}
    return rows


def idle_in_operators(raw: Raw, rank: int) -> dict[str, int]:
    """Of a rank's idle device time that neither loading nor calls explain, how much is in which outermost operator."""
    found: dict[str, int] = defaultdict(int)
    for file in raw.files[rank]:
        for device in {device_of(event) for event in file.plain.device}:
            busy = union(event.span for event in file.plain.device if device_of(event) == device)
            rest = less(between(busy), union(file.loading, file.layers["runtime"]))
            reached = 0
            for event in file.plain.operators:
                # The first that started has the time; what is inside another adds nothing.
                if event.end > reached:
                    new = [(max(event.start, reached), event.end)]
                    found[event.name] += length(common(new, rest))
                    reached = event.end
    return dict(found)


def launch_bound_in_bursts(claim: Claim, raw: Raw) -> None:
    """Several steps wait for launches, and most do not."""
    step, worst = mean_step_and_worst(claim, raw)
    rows = launches_by_step(raw, worst, ())
    slow = {key: row for key, row in rows.items() if row["late_ns"] >= 0.05 * raw.step_ns()}
    claim.require(set(claim.finding.steps) == {number for _, number in slow}, f"steps {slow}")
    claim.require(2 <= len(slow) < len(rows) / 2, "it happens once, or in most steps")
    total = sum(row["late_ns"] for row in slow.values())
    claim.is_near("device idle until a late launch", total)
    short = claim.is_near(
        "of which before kernels shorter than 10 µs", sum(row["late_short_ns"] for row in slow.values())
    )
    claim.require(short <= total / 2, "most of it is before short kernels")
    per = claim.is_near("mean over all steps", total / len(rows))
    claim.require(f"in {len(slow)} of {len(rows)} steps" in claim.finding.title, "the title's steps")
    saves_at_most(claim, per, step)


@checks("launch_bound")
def launch_bound(claim: Claim, raw: Raw) -> None:
    """Before these kernels nothing runs, they were launched after that began, and nothing else explains the gap."""
    if re.search(r"launch kernels in \d+ of \d+ steps", claim.finding.title):
        launch_bound_in_bursts(claim, raw)
        return
    steps = claim.finding.steps
    found = {rank: launches(raw, rank, steps) for rank in raw.ranks if raw.on_device}
    late = {rank: row["late_ns"] for rank, row in found.items() if row}
    step = step_of(claim, raw)
    worst = worst_of(claim, late)
    claim.is_near("device idle until a late launch", late[worst])
    claim.is_near("of which before kernels shorter than 10 µs", found[worst]["late_short_ns"])
    claim.is_near("kernels", found[worst]["pieces"], within=0.51)
    own = launches_by_step(raw, worst, steps)
    left_out_steps(claim, {number: row["late_ns"] for (_, number), row in own.items()}, step)
    if claim.has("operator with the most device idle time"):
        name = str(claim.take("operator with the most device idle time").value)
        by_operator = idle_in_operators(raw, worst)
        most = max(by_operator.values())
        said = max(value for each, value in by_operator.items() if each[:120] == name)
        claim.require(said == most, f"{name} has {said} ns of it, another {most}")
    saves(claim, late[worst], step)
    claim.is_ranks(worth_it(late, step))
    claim.share(step)


@checks("long_calls")
def long_calls(claim: Claim, raw: Raw) -> None:
    """Nothing runs, what comes next was not launched yet, and the host is in a long call, or in a first one."""
    names = {call.name[:80] for files in raw.files.values() for file in files for call in file.plain.calls}
    said = re.search(r"long calls of (.+?) for \d+ %|most of all (.+?), (?:keep|delay)", claim.finding.title)
    claim.require(not said or (said[1] or said[2]) in names, "no such call")
    if claim.finding.saving_ns is None:
        (rank,) = claim.finding.ranks
        rows = launches_by_step(raw, rank, ())
        lost = sum(row["long_ns"] + row["allocator_ns"] for row in rows.values())
        if lost:
            claim.is_near("device idle in long runtime calls and first calls", lost)
        said_before = "such calls before the first device event"
        before = claim.number(said_before) if claim.has(said_before) else 0
        hosts = [(file.plain.device, [*file.plain.calls, *file.plain.operators]) for file in raw.files[rank]]
        most = sum(max(0, device[0].start - min(e.start for e in host)) for device, host in hosts if device and host)
        claim.require(before <= most, f"of {most} ns before the first kernel")
        claim.require(("delay the first kernel" in claim.finding.title) == (before > lost), "what is delayed")
        claim.require(
            lost + before >= 0.05 * sum(end - begin for _, _, begin, end in windows_of_pieces(raw, rank, ())), "little"
        )
        claim.left.clear()
        return
    steps, step = claim.finding.steps, step_of(claim, raw)
    lost_by_rank = {rank: row["long_ns"] for rank in raw.ranks if raw.on_device and (row := launches(raw, rank, steps))}
    worst = worst_of(claim, lost_by_rank)
    claim.is_near("device idle in long runtime calls and first calls", lost_by_rank[worst])
    saves(claim, lost_by_rank[worst], step)
    claim.is_ranks(worth_it(lost_by_rank, step))
    claim.share(step)


@checks("silent_host")
def silent_host(claim: Claim, raw: Raw) -> None:
    """Nothing runs, what comes next was not launched yet, and the host records nothing for longer than 100 µs."""
    if re.search(r"no operator in \d+ of \d+ steps", claim.finding.title):
        step, worst = mean_step_and_worst(claim, raw)
        rows = {number: row["silent_ns"] for (_, number), row in launches_by_step(raw, worst, ()).items()}
        slow = {number: lost for number, lost in rows.items() if lost >= 0.05 * raw.step_ns()}
        claim.require(set(claim.finding.steps) == set(slow), f"steps {slow}")
        claim.require(2 <= len(slow) < len(rows) / 2, "it happens once, or in most steps")
        claim.is_near("device idle while the host records no operator", sum(slow.values()))
        per = claim.is_near("mean over all steps", sum(slow.values()) / len(rows))
        claim.require(f"in {len(slow)} of {len(rows)} steps" in claim.finding.title, "the title's steps")
        saves_at_most(claim, per, step)
        return
    steps, step = claim.finding.steps, step_of(claim, raw)
    lost = {rank: row["silent_ns"] for rank in raw.ranks if raw.on_device and (row := launches(raw, rank, steps))}
    worst = worst_of(claim, lost)
    claim.is_near("device idle while the host records no operator", lost[worst])
    own = launches_by_step(raw, worst, steps)
    left_out_steps(claim, {number: row["silent_ns"] for (_, number), row in own.items()}, step)
    saves(claim, lost[worst], step)
    claim.is_ranks(worth_it(lost, step))
    claim.share(step)


def added_by_the_profiler(raw: Raw, steps: tuple[int, ...]) -> dict[int, float]:
    """By how much recorded windows exceed the median of the steps that were not recorded."""
    found = {}
    for manifest in raw.manifests:
        rank, plain = manifest.get("rank"), (manifest.get("step_median_ns") or {}).get("wait")
        if rank in raw.files and plain:
            found[rank] = max(
                0.0, statistics.median(end - begin for _, _, begin, end in raw.windows(rank, steps or None)) - plain
            )
    return found


@checks("small_kernels")
def small_kernels(claim: Claim, raw: Raw) -> None:
    """Pieces this short really are most of what runs, and the gaps before them are theirs."""
    steps = claim.finding.steps
    step = step_of(claim, raw)
    found = {rank: row for rank in raw.ranks if (row := launches(raw, rank, steps))}
    added = {} if raw.on_device else added_by_the_profiler(raw, steps)
    saving = {
        rank: row["late_short_ns"] if raw.on_device else max(0.0, row["cost"] - added.get(rank, 0))
        for rank, row in found.items()
    }
    worst = min((rank for rank in found if round(saving[rank]) == claim.finding.saving_ns), default=None)
    claim.require(worst is not None, f"no rank has this saving, but {saving}")
    assert worst is not None
    claim.require(saving[worst] >= max(saving[rank] for rank in claim.finding.ranks) - 1.5, "another rank has more")
    row = found[worst]
    claim.is_near("compute kernels" if raw.on_device else "operators", row["pieces"], within=0.51)
    claim.is_near("shorter than", row["short"], within=0.51)
    claim.is_near("time in these", row["short_ns"])
    claim.is_near("gaps before these", row["late_short_ns"])
    if claim.has("what the profiler adds"):
        claim.is_near("what the profiler adds", added[worst])
    share = re.match(r"(\d+) %", claim.finding.title)
    claim.require(share, "no share in the title")
    assert share is not None
    claim.same(float(share[1]), 100 * row["short"] / row["pieces"], "the title's share", within=0.51)
    if raw.on_device:
        claim.require(row["late_short_ns"] > 0.5 * row["late_ns"], "most gaps are before longer kernels")
    claim.require(saving[worst] <= step + 1, "the saving exceeds the step")
    claim.require(set(claim.finding.ranks) <= set(worth_it(saving, step)), "a rank for which it is not worth it")


# -- waiting for the device ------------------------------------------------------------------------------------------


def waits(file: File, steps: tuple[int, ...]) -> list[tuple[Event, int]]:
    """Calls that wait for the device, and how long it then has nothing to do until its next event."""
    calls = [call for call in file.plain.calls if WAITS.search(call.name)]
    if file.plain.steps:
        calls = [call for call in calls if file.step_at(call.start) in (steps or raw_steps(file))]
    calls.sort(key=lambda call: call.end)
    found = []
    gaps = between(file.busy)
    for start, resumes in gaps:
        inside = [call for call in calls if start <= call.end <= resumes]
        at = start
        for place, call in enumerate(inside):
            until = resumes if place == len(inside) - 1 else call.end
            first = max(at, call.start)
            found.append((call, min(max(until - first, 0), call.end - call.start)))
            at = call.end
    idle = {id(call) for call, _ in found}
    return found + [(call, 0) for call in calls if id(call) not in idle]


def innermost(ranges: list[Event], call: Event) -> str:
    """The name of the latest range to start around a call, on its thread; empty if there is none."""
    around = [one for one in ranges if one.thread == call.thread and one.start <= call.start < one.end]
    return max(around, key=lambda one: (one.start, -one.end)).name if around else ""


def user_ranges(file: File) -> list[Event]:
    """Ranges of the user, without steps."""
    return [one for one in file.plain.named if not one.name.startswith("ProfilerStep#")]


def raw_steps(file: File) -> set[int]:
    return {number for number, _, _ in file.plain.steps}


@checks("synchronizing_calls")
def synchronizing_calls(claim: Claim, raw: Raw) -> None:
    """The host is in such a call when the device runs dry, and the device stays idle until its next event."""
    steps = claim.finding.steps
    idle = {}
    places: dict[int, dict[str, list[int]]] = {}
    once = set()
    for rank, files in raw.files.items():
        number = max(sum(len(raw_steps(file) & set(steps or raw_steps(file))) for file in files), 1)
        found: dict[tuple[str, str, str], dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
        for file in files:
            for call, dry in waits(file, steps):
                where = (call.name, innermost(file.plain.operators, call), innermost(user_ranges(file), call))
                found[where][file.plain.steps and (file.path, file.step_at(call.start))].append(dry)
        own: dict[str, list[int]] = defaultdict(list)
        of_step: dict[object, int] = defaultdict(int)
        for (name, _, _), by_step in found.items():
            if not all(by_step) or recurs(claim, len(by_step), number):
                own[name] += [dry for each in by_step.values() for dry in each]
                for at, each in by_step.items():
                    of_step[at] += sum(each)
        if number > 2 and 2 * max(of_step.values(), default=0) > sum(of_step.values()):
            once.add(rank)
        places[rank] = own
        idle[rank] = sum(sum(found) for found in own.values()) / number
    step = step_of(claim, raw)
    # A rank that was idle in one step mostly need not be the worst in others.
    compared = {rank: value for rank, value in idle.items() if rank not in once or rank == claim.named_rank()}
    worst = worst_of(claim, compared or idle)
    rows = len(claim.left)
    # Each place is rounded down.
    claim.is_near("device idle after such calls", idle[worst], within=rows + 20)
    if claim.has("at most, by the device's idle time"):
        claim.is_near("at most, by the device's idle time", claim.finding.saving_ns or 0)
    total = 0.0
    while claim.left:
        each = claim.left[0]
        call = each.name.split(" from ")[0]
        claim.require(call in places[worst], f"rank {worst} has no {call}")
        value = claim.number(each.name)
        per = sum(places[worst][call])
        claim.require(value <= per + 1, f"{call} leaves the device idle for {per} ns, not {value}")
        total += value
    saves_at_most(claim, idle[worst], step)
    claim.require(total <= idle[worst] + rows, "the places sum to more than the idle time after all of them")
    claim.require(all(idle[rank] + 20 >= WORTH * step for rank in claim.finding.ranks), "a rank with too little")
    claim.share(step)


def saves_at_most(claim: Claim, bound: float, step: float) -> None:
    saving = claim.finding.saving_ns
    claim.require(saving is not None, "no saving")
    claim.require((saving or 0) <= bound + 1.5, f"the saving of {saving} exceeds what it is taken from: {bound:.0f}")
    claim.require((saving or 0) <= step + 1, f"the saving of {saving} exceeds the step of {step}")


# -- garbage, compiling, the profiler --------------------------------------------------------------------------------


def in_steps(file: File, event: Event, steps: tuple[int, ...]) -> bool:
    """Whether a range of the host starts in one of the steps, where there are steps."""
    if not file.plain.steps:
        return True
    return file.step_at(event.start) in (steps or raw_steps(file))


def step_count(raw: Raw, rank: int, steps: tuple[int, ...]) -> int:
    return max(len(raw.windows(rank, steps or None)), 1)


def collections(file: File) -> list[Event]:
    """Ranges that rankscope records around garbage collections; without any, torch's frames."""
    ranges = [e for e in [*file.plain.named, *file.plain.operators] if e.name.startswith("gc: generation ")]
    return ranges or [event for event in file.frames if event.name == "Python GC"]


@checks("gc_pauses")
def gc_pauses(claim: Claim, raw: Raw) -> None:
    """Ranges that say that garbage is collected, in the steps."""
    steps = claim.finding.steps
    own: dict[int, list[Event]] = {}
    for rank, files in raw.files.items():
        by_name: dict[str, list[tuple[object, Event]]] = defaultdict(list)
        for file in files:
            for event in collections(file):
                if in_steps(file, event, steps):
                    by_name[event.name].append((file.plain.steps and (file.path, file.step_at(event.start)), event))
        number = step_count(raw, rank, steps)
        kept = [f for f in by_name.values() if not f[0][0] or recurs(claim, len({at for at, _ in f}), number)]
        own[rank] = [event for found in kept for _, event in found]
    spent = {r: length(union(e.span for e in found)) / step_count(raw, r, steps) for r, found in own.items()}
    idle = {
        rank: spent[rank]
        if not raw.on_device
        else sum(length(less(union(e.span for e in own[rank] if e in collections(f)), f.busy)) for f in files)
        / step_count(raw, rank, steps)
        for rank, files in raw.files.items()
    }
    step = step_of(claim, raw)
    worst = worst_of(claim, idle)
    claim.is_near("time in collections", spent[worst])
    claim.is_near("of which with an idle device", idle[worst])
    every = [event for file in raw.files[worst] for event in collections(file)]
    claim.is_near("collections, entire file", len(every))
    claim.is_near("the longest", max(event.end - event.start for event in every))
    saves(claim, idle[worst], step)
    claim.is_ranks(worth_it(idle, step))
    claim.share(step)


OVERHEAD = re.compile(r"^(TorchDynamo Cache Lookup|AOTDispatcher Runtime Wrapper Prologue|Pregraph bytecode)")
COMPILING = re.compile(r"^entire_(frame|backward)_compile")
REGION = re.compile(r"^Torch-Compiled Region: (\d+)/(\d+)")


@checks("graph_breaks")
def graph_breaks(claim: Claim, raw: Raw) -> None:
    """The regions that ran have these frames and versions; guards and compiling took this long in the steps."""
    steps = claim.finding.steps
    regions, spent, compiling, idle = set(), {}, {}, {}
    for rank, files in raw.files.items():
        total = idle_looking = idle_compiling = 0
        count = step_count(raw, rank, steps)
        by_name: dict[str, list[tuple[object, int, int]]] = defaultdict(list)
        for file in files:
            ranges = [e for e in [*file.plain.operators, *file.plain.named] if in_steps(file, e, steps)]
            regions |= {(int(m[1]), int(m[2])) for e in ranges if (m := REGION.match(e.name))}
            for event in ranges:
                if OVERHEAD.match(event.name) or COMPILING.match(event.name):
                    lasted = event.end - event.start
                    without = lasted - within(file.busy, *event.span) if raw.on_device else lasted
                    at = file.plain.steps and (file.path, file.step_at(event.start))
                    by_name[event.name.removesuffix(" (dynamo_timed)")].append((at, lasted, without))
        for name, found in by_name.items():
            if found[0][0] and not recurs(claim, len({at for at, _, _ in found}), count):
                continue
            total += sum(lasted for _, lasted, _ in found)
            if COMPILING.match(name):
                idle_compiling += sum(without for _, _, without in found)
            else:
                idle_looking += sum(without for _, _, without in found)
        spent[rank] = total / count
        compiling[rank] = sum(
            e.end - e.start for f in files for e in [*f.plain.operators, *f.plain.named] if COMPILING.match(e.name)
        )
        idle[rank] = idle_looking / count, idle_compiling / count
    step = step_of(claim, raw)
    frames, again = len({frame for frame, _ in regions}), sum(version > 0 for _, version in regions)
    # One graph would keep its share of the lookups.
    saved = {rank: look * (1 - 1 / (frames + again)) + rest for rank, (look, rest) in idle.items()}
    worst = worst_of(claim, saved)
    claim.is_near("compiled frames", frames)
    claim.is_near("compiled again", again)
    claim.is_near("guards, lookups and compiling", spent[worst])
    claim.is_near("of which with an idle device", saved[worst])
    claim.is_near("compile time", compiling[worst])
    while claim.has("break"):
        name, line = str(claim.take("break").value).rsplit(" line ", 1)
        claim.require(
            any(
                f"torch_dynamo_resume_in_{name}_at_{line}" in frame.name
                for file in raw.files[worst]
                for frame in file.frames
            ),
            f"no frame resumes {name} at {line}",
        )
    found = re.search(r"(\d+) graphs", claim.finding.title)
    claim.require(found is None or int(found[1]) == frames, "the title's number of graphs")
    saves(claim, saved[worst], step)
    claim.is_ranks(worth_it(saved, step))


@checks("profiler_cost")
def profiler_cost(claim: Claim, raw: Raw) -> None:
    """The manifests have these medians."""
    medians = {each["rank"]: each.get("step_median_ns") or {} for each in raw.manifests}
    shares = {r: m["active"] / m["wait"] - 1 for r, m in medians.items() if m.get("active") and m.get("wait")}
    worst = max(sorted(shares), key=lambda rank: shares[rank])
    claim.is_near("median step, not recorded", medians[worst]["wait"])
    claim.is_near("added by recording", medians[worst]["active"] - medians[worst]["wait"])
    claim.is_ranks([rank for rank, share in shares.items() if share >= 0.05])
    said = re.search(r"takes (\d+) % longer", claim.finding.title)
    claim.require(said and abs(float(said[1]) - 100 * shares[worst]) <= 0.51, f"the title's share: {shares[worst]}")
    claim.require(claim.finding.saving_ns is None, "the profiler's cost is no saving")


@checks("shared_device")
def shared_device(claim: Claim, raw: Raw) -> None:
    """The manifests of these ranks have one device."""
    on: dict[object, set[int]] = defaultdict(set)
    for each in raw.manifests:
        device = each.get("device") or {}
        key = device.get("uuid") or (device.get("pci_bus_id") and (each.get("host"), device["pci_bus_id"]))
        on[key, each.get("restart_count", 0)].add(each["rank"])
    shared = [ranks for (key, _), ranks in on.items() if key and len(ranks) > 1]
    claim.is_ranks(set().union(*shared))
    claim.is_near("devices with several ranks", len(shared))
    name = claim.take("device").value
    claim.require(name in {(each.get("device") or {}).get("name") for each in raw.manifests}, f"no {name}")
    said = {int(rank) for rank in re.findall(r"\d+", claim.finding.title.partition(" more")[0])}
    claim.require(any(said <= ranks for ranks in shared) or "more" in claim.finding.title, f"{said} share none")


@checks("numa_binding")
def numa_binding(claim: Claim, raw: Raw) -> None:
    """The manifests of these ranks have cores of other nodes than the device's."""
    far = {}
    for each in raw.manifests:
        near, nodes = (each.get("device") or {}).get("numa_node"), (each.get("environment") or {}).get("numa_nodes")
        spans = [part.partition("-") for part in (nodes or "").split(",")]
        own = {n for low, _, high in spans if low for n in range(int(low), int(high or low) + 1)}
        if near is not None and own and near not in own:
            far[each["rank"]] = near, nodes
    claim.is_ranks(far)
    claim.is_near("NUMA node of the device", far[min(far)][0])
    claim.require(claim.take("NUMA nodes of its cores").value == far[min(far)][1], "other nodes")


@checks("too_few_steps")
def too_few_steps(claim: Claim, raw: Raw) -> None:
    """There are this few steps in all files."""
    claim.is_near("steps", len(raw.steps))
    claim.require(claim.number("steps needed") > len(raw.steps), "there are enough")
    claim.require(set(claim.finding.steps) == raw.steps, f"steps {claim.finding.steps}, recomputed {raw.steps}")
