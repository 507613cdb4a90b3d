"""Claims that analyses make: of clocks, of matched collectives, of stragglers, of what traces do not have."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict

from tests.claims.claim import MEAN_STEP, Claim
from tests.claims.exchanges import LOOSE, P2P, ROOM_NS, Exchanges, offsets
from tests.claims.raw import File, Raw, mean
from tests.claims.registry import checks
from tests.claims.spans import length, less, union, within

# -- clocks ----------------------------------------------------------------------------------------------------------


def behind_of(raw: Raw) -> dict[int, float]:
    return offsets(Exchanges.of(raw).rows, raw.ranks)


@checks("clock-not-aligned")
def clock_not_aligned(claim: Claim, raw: Raw) -> None:
    """These ranks share no collective that is matched with another rank."""
    claim.is_near("ranks on their wall clock", len(claim.finding.ranks))
    known = Exchanges.of(raw)
    shared = {row.rank for rows in known.matches.values() for row in rows if row.kind not in LOOSE}
    claim.require(not shared & set(claim.finding.ranks), f"ranks {shared} share collectives")


@checks("clock-components")
def clock_components(claim: Claim, raw: Raw) -> None:
    """So many sets of ranks share no collective with each other."""
    claim.require(claim.number("sets of linked ranks") > 1, "one set")
    known = Exchanges.of(raw)
    sets = [{rank} for rank in raw.ranks]
    for rows in known.matches.values():
        if rows[0].kind in LOOSE:
            continue
        ranks = {row.rank for row in rows}
        joined = set().union(*(each for each in sets if each & ranks))
        sets = [each for each in sets if not each & ranks] + [joined]
    claim.require(len(sets) > 1, "matched collectives link all ranks")


@checks("clocks-differ")
def clocks_differ(claim: Claim, raw: Raw) -> None:
    """What the ranks share ends so much earlier or later on their wall clocks."""
    behind = behind_of(raw)
    first = min(raw.ranks)
    name = next(each.name for each in claim.left if each.name.startswith("largest offset"))
    rank = int(re.findall(r"\d+", name)[0])
    said = claim.number("largest offset")
    residual = claim.number("residual after correction")
    room = max(3 * residual, ROOM_NS, 0.02 * abs(said))
    claim.same(said, behind[rank] - behind[first], "the offset", within=room)
    claim.require(abs(said) > residual, "the offset is within its own residual")
    known = Exchanges.of(raw)
    deviations = []
    for rows in known.matches.values():
        if rows[0].kind in LOOSE:
            continue
        ends = [row.wall + behind[row.rank] for row in rows]
        deviations += [abs(end - statistics.median(ends)) for end in ends]
    claim.require(not deviations or statistics.median(deviations) <= max(3 * residual, ROOM_NS), "the residual")


@checks("times-differ-on-host")
def times_differ(claim: Claim, raw: Raw) -> None:
    """This rank's ends are so much earlier or later than those of another."""
    behind = behind_of(raw)
    name = next(each.name for each in claim.left if each.name.startswith("largest difference"))
    rank = int(re.findall(r"\d+", name)[0])
    said, residual = claim.number("largest difference"), claim.number("residual after correction")
    claim.require(abs(said) > residual, "the difference is within its own residual")
    # Of any ranks that may share its host.
    places = [behind[rank] - value for value in (*behind.values(), statistics.median(behind.values()))]
    near = min(abs(each - said) for each in places)
    claim.require(near <= max(3 * residual, ROOM_NS, 0.02 * abs(said)), f"it is not {said} ns away: {behind}")


# -- matches ---------------------------------------------------------------------------------------------------------


@checks("collectives-matched", "unmatched-collectives")
def unmatched_collectives(claim: Claim, raw: Raw) -> None:
    """The files hold so many collectives; as many as have no partner lack one."""
    known = Exchanges.of(raw)
    total = claim.number("collectives of all ranks")
    # Calls without any kernel are listed where there is nothing else.
    claim.require(
        total == len(known.rows) or not all(f.on_device for fs in raw.files.values() for f in fs),
        f"there are {len(known.rows)}",
    )
    matched = claim.number("matched across ranks")
    by_method = 0.0
    while claim.has("matched by"):
        by_method += claim.number("matched by")
    claim.same(by_method, matched, "the sum of the methods", within=0)
    for each in [each for each in claim.left if each.name.endswith(" recorded per rank")]:
        claim.left.remove(each)
        kind = each.name.removesuffix(" recorded per rank")
        counts = [sum(r.rank == rank and r.kind == kind for r in known.rows) for rank in {r.rank for r in known.rows}]
        least, _, most = str(each.value).partition("–")
        claim.require((int(least), int(most or least)) == (min(counts), max(counts)), f"there are {counts} of {kind}")
    why: dict[str, float] = {}
    for each in list(claim.left):
        why[each.name] = claim.number(each.name)
    claim.same(matched + sum(why.values()), total, "matched and not matched together", within=0)
    # What is matched without doubt in plain Python, rankscope must not call lost.
    plainly = sum(len(rows) for rows in known.matches.values())
    claim.require(matched >= plainly, f"{plainly} are matched by step and order alone")
    lost = why.get("missing on other ranks, between matched ones", 0)
    if lost:
        counts: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: dict.fromkeys(raw.ranks, 0))
        for row in known.rows:
            counts[row.group, row.kind][row.rank] += 1
        uneven = sum(max(each.values()) - min(each.values()) for each in counts.values())
        claim.require(uneven or total > len(known.rows), "every rank has as many of each kind: nothing is lost")


@checks("unknown-groups")
def unknown_groups(claim: Claim, raw: Raw) -> None:
    """Kernels on several ranks name no group, and the traces do not say which ranks it has."""
    nameless = [row for row in Exchanges.of(raw).rows if row.group.startswith(("stream ", "unknown"))]
    claim.require(len({row.rank for row in nameless}) > 1, "no such kernels on two ranks")
    claim.require(set(claim.finding.ranks) <= {row.rank for row in nameless}, "ranks without such kernels")
    communicators = claim.number("communicators")
    claim.require(0 < claim.number("their collectives") <= len(nameless), f"there are {len(nameless)}")
    because = "communicators, because "
    reasons = {each.name.removeprefix(because): claim.number(each.name) for each in list(claim.left)}
    claim.same(sum(reasons.values()), communicators, "the sum of the reasons", within=0)
    claim.require("the number of ranks of the job is not recorded" not in reasons or not raw.world, "it is")
    missing = "ranks of the job have no trace" in reasons
    claim.require(not missing or raw.world > len(raw.ranks), "all ranks have a trace")


@checks("incomplete-groups")
def incomplete_groups(claim: Claim, raw: Raw) -> None:
    """The metadata of these groups name more ranks than there are files."""
    known = Exchanges.of(raw)
    seen: dict[tuple[str, object, int], set[int]] = defaultdict(set)
    count: dict[tuple[str, object, int], int] = defaultdict(int)
    for row in known.rows:
        if row.size is not None:
            seen[row.group, row.members, row.size].add(row.rank)
            count[row.group, row.members, row.size] += 1
    partly = {key: ranks for key, ranks in seen.items() if len(ranks) < key[2]}
    claim.is_near("groups", len(partly))
    claim.is_near("their collectives, over all ranks", sum(count[key] for key in partly))
    name = next(each.name for each in claim.left if each.name.startswith("ranks of group "))
    group = name.removeprefix("ranks of group ")
    sizes = {key[2]: len(ranks) for key, ranks in partly.items() if key[0] == group}
    size = claim.number("ranks of group")
    claim.require(size in sizes, f"group {group} has {sizes}")
    claim.is_near("recorded ranks of that group", sizes[int(size)])
    claim.is_ranks(set().union(*partly.values()))


@checks("collectives-without-kernel")
def collectives_without_kernel(claim: Claim, raw: Raw) -> None:
    """Calls of collectives that no kernel of the file names or was launched in."""
    said = claim.number("calls of all ranks")
    calls = kernels = 0
    for rank in claim.finding.ranks:
        for file in raw.files[rank]:
            calls += sum(
                event.name == "record_param_comms" or event.name.startswith(("nccl:", "rccl:", "c10d::"))
                for event in [*file.plain.operators, *file.plain.named]
            )
            kernels += sum(row.rank == rank for row in Exchanges.of(raw).rows)
    claim.require(0 < said <= calls, f"there are {calls} ranges of calls, and {kernels} kernels")


@checks("ambiguous-match", "unmatched-ranks", "collectives-disagree")
def doubtful_matches(claim: Claim, raw: Raw) -> None:
    """Ranks that do not fit the others: they are there, and have collectives."""
    known = Exchanges.of(raw)
    claim.require(set(claim.finding.ranks) <= {row.rank for row in known.rows}, "ranks without collectives")
    if claim.has("evidence for the chosen position"):
        chosen, other = claim.number("evidence for the chosen"), claim.number("evidence for the other")
        claim.require(chosen >= other - 1 and claim.number("distance between the two") > 0, "no two positions")
    elif claim.has("collectives"):
        by_number: dict[object, set[object]] = defaultdict(set)
        for row in known.rows:
            if row.sequence is not None:
                by_number[row.group, row.members, row.sequence].add((row.kind, row.dtype, row.sent))
        claim.require(any(len(each) > 1 for each in by_number.values()), "equal numbers agree on all ranks")
        claim.take("collectives")
    else:
        claim.is_near("ranks", len(claim.finding.ranks))


# -- stragglers ------------------------------------------------------------------------------------------------------


def local_times(raw: Raw) -> dict[int, dict[int, int]]:
    """By step and rank: from the end of the last collective of one step to that of the next, less what is exposed.

    Without a device from the beginning of the step's range to its end, as Gloo's threads end a collective's late.
    """
    known = Exchanges.of(raw)
    ends: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rows in known.matches.values():
        if rows[0].kind in P2P:
            continue
        for row in rows:
            if row.step is not None:
                ends[row.rank][row.step].append(row.end)
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, by_step in ends.items():
        for file in raw.files[rank]:
            for number, begin, end in file.plain.steps:
                if number not in by_step:
                    continue
                if not raw.on_device and len(by_step[number]) > 1:
                    found[number][rank] = end - begin - within(file.exclusive["exposed_communication"], begin, end)
                    continue
                until = max(by_step[number])
                since = max(by_step[number - 1]) if number - 1 in by_step else min(by_step[number])
                if until > since:
                    found[number][rank] = until - since - within(file.exclusive["exposed_communication"], since, until)
    return found


def excess_of(claim: Claim, raw: Raw, times: dict[int, dict[int, int]]) -> dict[int, float]:
    """By step how much longer the named ranks' local time is than the others' median."""
    ranks = set(claim.finding.ranks)
    others = [rank for rank in raw.ranks if rank not in ranks]
    claim.require(others, "there are no others")
    excess = {}
    for number, row in times.items():
        own, rest = [row[r] for r in ranks if r in row], [row[r] for r in others if r in row]
        if own and rest:
            excess[number] = statistics.fmean(own) - statistics.median(rest)
    return excess


BY_NAME = "longer than on its peers"
"""What takes longer is computed by hand in tests/primitives/stragglers/test_host_items.py."""


@checks("stall")
def stall(claim: Claim, raw: Raw) -> None:
    """In the named step its local time exceeds the others' by more than in any other step."""
    excess = excess_of(claim, raw, local_times(raw))
    (step,) = claim.finding.steps
    rest = [each for number, each in excess.items() if number != step]
    claim.require(excess[step] > max(rest, default=0.0), f"another step is as late: {excess}")
    said, compared = claim.number("local time above its peers' median"), claim.number("steps compared")
    claim.same(said * compared, excess[step], "the excess", within=max(0.1 * excess[step], compared * ROOM_NS))
    claim.require(claim.number("steps in which it is late") == 1, "it is late more often")
    _waited(claim, raw, claim.number("time other ranks waited for it, all steps together"), set(claim.finding.ranks))
    claim.number("largest lateness per step, mean")
    claim.take("significance test")
    claim.left = [each for each in claim.left if not each.name.startswith(("cause: ", BY_NAME))]
    claim.require((claim.finding.saving_ns or 0) <= said * 1.1 + ROOM_NS, "the saving exceeds what it is late by")


def of_the_mean_step(claim: Claim, raw: Raw) -> None:
    """What is gained per step is a part of the mean step where that differs from the median one."""
    mean, median = raw.mean_step_ns(), raw.step_ns()
    differs = abs(mean - median) - 0.05 * median
    if abs(differs) > 0.001 * median:
        claim.require(claim.of_mean == (differs > 0 and bool(claim.finding.saving_ns)), f"{mean}, median {median}")
    if claim.of_mean:
        claim.is_near(MEAN_STEP, mean)


@checks("straggler")
def straggler(claim: Claim, raw: Raw) -> None:
    """Its own time per step exceeds the others'; they wait for it; and what is called the cause takes longer on it."""
    ranks = set(claim.finding.ranks)
    claim.take("significance test")
    of_the_mean_step(claim, raw)
    times = local_times(raw)
    excess = excess_of(claim, raw, times)
    compared = claim.number("steps compared")
    claim.require(compared <= max(len(times), 1), f"only {len(times)} steps can be compared")
    late = claim.number("steps in which it is late")
    claim.require(late <= compared, "more steps than are compared")
    too = [each for each in claim.left if each.name.startswith("as late in the same steps")]
    for evidence in too:
        claim.left.remove(evidence)
        others = [int(rank) for rank in str(evidence.value).split(", ")]
        claim.require(not ranks & set(others), "it names itself as another")
        for rank in others:
            # As late as it, but for what other stragglers move the median by.
            beside = [
                row[rank] - statistics.median(ns for r, ns in row.items() if r not in ranks and r not in others)
                for row in times.values()
                if rank in row and len(row) > len(ranks) + len(others)
            ]
            claim.require(4 * sum(beside) >= sum(excess.values()), f"rank {rank} is not as late: {beside}")
    busy = any(each.name.startswith("its device's busy time") for each in claim.left)
    in_late = any("in its late steps" in each.name for each in claim.left)
    said = claim.number("its device's busy time" if busy else "local time above its peers' median")
    if in_late and len(ranks) == 1:
        # Those that the finding names, or of a rank that is late but for hiccups of its peers, all in which it is late.
        # The first step of a file is cut at its beginning: it is compared only where there is no other.
        seen = sorted(excess)[-int(compared) :]
        steps = claim.finding.steps or tuple(number for number in seen if excess[number] > 0)
        usual = sum(excess[number] for number in steps) / compared
        claim.same(said, usual, "the excess", within=max(0.1 * abs(usual), ROOM_NS))
    elif busy:
        # What its device was idle for is not claimed.
        idle_more = statistics.fmean(excess.values()) - said
        claim.require(idle_more > -ROOM_NS, "it claims more than the rank is late by")
    elif excess:
        # A rank that stalled besides is judged by its other steps.
        if len(excess) > compared and 2 * max(excess.values()) > sum(excess.values()):
            del excess[max(excess, key=excess.__getitem__)]
        # The first step of a file is cut at its beginning: it is compared only where there is no other.
        excess = {number: excess[number] for number in sorted(excess)[-int(compared) :]}
        usual = statistics.fmean(excess.values())
        claim.same(said, usual, "the excess", within=max(0.1 * abs(usual), ROOM_NS))
        claim.require(sum(each > 0 for each in excess.values()) >= late, f"it is late in fewer steps: {excess}")
    lateness = claim.number("largest lateness per step, mean")
    waited = claim.number("time other ranks waited for it, all steps together")
    longest = sum(max(e - b for f in raw.files[r] for _, b, e in f.windows) for r in raw.ranks)
    claim.require(lateness <= longest, "it is later than the steps are long")
    _waited(claim, raw, waited, ranks)
    claim.left = [each for each in claim.left if not each.name.startswith(BY_NAME)]
    cause = next(each for each in claim.left if each.name.startswith("cause"))
    claim.left.remove(cause)
    name = cause.name.removeprefix("cause: ").replace(" ", "_")
    by_loader = "longer in its data loader" in str(cause.value)
    _cause(claim, raw, "data_loader" if by_loader else name, said, excess)
    saving = claim.finding.saving_ns or 0
    claim.require(
        saving <= max(max(excess.values(), default=said), said) * 1.1 + ROOM_NS, "the saving exceeds what it is late by"
    )
    claim.require(saving <= raw.longest_ns(), "the saving exceeds the step")


def _waited(claim: Claim, raw: Raw, waited: float, ranks: set[int]) -> None:
    """Others cannot have waited longer than they communicated with nothing else to do, all of them together."""
    known = Exchanges.of(raw)
    spans = []
    behind = behind_of(raw)
    for rows in known.matches.values():
        for row in rows:
            if row.rank not in ranks:
                spans.append(
                    (row.start + row.file.base + int(behind.get(row.rank, 0)), row.wall + int(behind.get(row.rank, 0)))
                )
    claim.require(
        waited <= length(union(spans)) * 1.05 + ROOM_NS,
        f"the others were in collectives for {length(union(spans))} only",
    )


def _cause(claim: Claim, raw: Raw, cause: str, said: float, excess: dict[int, float]) -> None:
    """What is called the cause takes longer on this rank than on the median of the others, by enough."""
    if cause == "unclear":
        return
    ranks = set(claim.finding.ranks)
    late = {number for number, each in excess.items() if each > 0} or None

    def taken(rank: int) -> float:
        return (
            statistics.fmean(_taken(file, cause, b, e) for file, _, b, e in raw.windows(rank, late))
            if raw.windows(rank, late)
            else 0.0
        )

    own = statistics.fmean(taken(rank) for rank in ranks)
    others = [taken(rank) for rank in raw.ranks if rank not in ranks]
    more = own - statistics.median(others)
    least = 0.25 * (statistics.fmean(e for n, e in excess.items() if late is None or n in late) if excess else said)
    claim.require(
        more >= min(least, 0.3 * said), f"{cause} takes {more:.0f} ns more on it, which explains {least:.0f} of nothing"
    )


def _taken(file: File, cause: str, begin: int, end: int) -> float:
    if cause == "data_loading":
        return file.part("data_loading", begin, end) + within(file.loading, begin, end) * (not file.on_device)
    if cause == "data_loader":  # Whether the device waits for it or not.
        return within(file.loading, begin, end)
    if cause in ("slow_device", "more_work"):
        if file.on_device:
            return sum(e.end - e.start for e in file.computing if e.launch is not None and begin <= e.start < end)
        return file.part("compute", begin, end)
    if cause == "memory":
        calls = union(c.span for c in file.plain.calls if re.search("malloc|free|mem(create|map)", c.name, re.I))
        return within(calls, begin, end) + file.part("exposed_memcpy", begin, end)
    # The host: whatever of the window neither computes nor communicates on the device.
    spent = sum(file.part(name, begin, end) for name in ("compute", "exposed_communication"))
    if not file.on_device:
        spent = file.part("exposed_communication", begin, end)
    return end - begin - spent


@checks("slow-network")
def slow_links(claim: Claim, raw: Raw) -> None:
    """The group's transfers really take longer than others of their kind and size, here or in other steps."""
    more = claim.number("transfers are slower by")
    expected = claim.number("expected transfer time")
    claim.take("groups it is compared with")
    of_the_mean_step(claim, raw)
    claim.require(more > 0 and expected > 0, "no transfer is slower")
    known = Exchanges.of(raw)
    said = re.match(r"Group (.*) transfers", claim.finding.title)
    claim.require(said, "the title names no group")
    assert said is not None
    own = sum(
        known.transfer(rows[0]) or 0
        for rows in known.matches.values()
        if rows[0].group == said[1] and rows[0].kind not in P2P
        and (not claim.finding.ranks or {row.rank for row in rows} <= set(claim.finding.ranks))
    )  # fmt: skip
    claim.require(more <= own * 1.05 + ROOM_NS, f"the group's transfers take {own} ns in all")
    claim.require((claim.finding.saving_ns or 0) <= more + 1, "the saving exceeds what they are slower by")


@checks("not-judged")
def not_judged(claim: Claim, raw: Raw) -> None:
    """The files of these ranks end too early."""
    claim.is_ranks(raw.cut)


# -- devices ---------------------------------------------------------------------------------------------------------


@checks("host-device-clock-skew")
def clock_skew(claim: Claim, raw: Raw) -> None:
    """On these ranks, device events start before the calls that launch them."""
    early = {
        rank: [e.launch - e.start for f in files for e in f.plain.device if e.launch is not None and e.start < e.launch]
        for rank, files in raw.files.items()
    }
    early = {rank: found for rank, found in early.items() if found}
    claim.is_ranks(early)
    claim.is_near("disagreement of at least", max(max(found) for found in early.values()))
    claim.is_near("such events on the rank with the fewest", min(len(found) for found in early.values()))


@checks("ranks-without-device-events")
def without_device(claim: Claim, raw: Raw) -> None:
    without = [rank for rank, files in raw.files.items() if not any(file.plain.device for file in files)]
    claim.is_ranks(without)
    claim.is_near("ranks with device events", len(raw.ranks) - len(without))
    claim.is_near("ranks without", len(without))


@checks("gloo-beside-device")
def gloo_beside(claim: Claim, raw: Raw) -> None:
    spent = {
        rank: sum(
            length(union(e.span for e in [*f.plain.named, *f.plain.operators] if e.name.startswith("gloo:")))
            for f in files
            if f.on_device
        )
        for rank, files in raw.files.items()
    }
    claim.is_ranks([rank for rank, value in spent.items() if value])
    name = next(each.name for each in claim.left if each.name.startswith("time in Gloo"))
    rank = int(re.findall(r"\d+", name)[-1])
    claim.is_near("time in Gloo", spent[rank])
    claim.require(spent[rank] == max(spent.values()), "another rank has more")


@checks("memory-without-addresses")
def without_addresses(claim: Claim, raw: Raw) -> None:
    silent = [
        rank
        for rank, files in raw.files.items()
        if (rows := [each for file in files for each in file.allocations]) and not any(each.address for each in rows)
    ]
    claim.is_ranks(silent)
    claim.is_near("ranks without addresses", len(silent))


@checks("mesh-imbalance")
def mesh_imbalance(claim: Claim, raw: Raw) -> None:
    """The ranks named compute so much per step, on average."""
    # Of a file that is cut nobody knows how much was computed.
    claim.require(not raw.cut & set(claim.finding.ranks), "a rank whose file is cut")
    compute = {rank: raw.mean_per_step(rank, "compute") for rank in raw.ranks if rank not in raw.cut}
    own = mean({rank: compute[rank] for rank in claim.finding.ranks if rank in compute})
    claim.is_near("compute per step, ", own, within=3)
    usual = claim.number("compute per step, mean")
    claim.require(min(compute.values()) <= usual + 2 and usual - 2 <= max(compute.values()), "no such mean")
    if claim.finding.title.startswith("dp=") and len(claim.finding.ranks) == 1:
        claim.same(usual, mean(compute), "the mean", relative=1e-3)
    claim.is_near("imbalance", (own - usual) / usual, within=1e-4)
    claim.same(claim.finding.saving_ns or 0, own - usual, "the saving", within=4)
    said = re.search(r"computes ([\d.]+) % longer", claim.finding.title)
    claim.require(said and abs(float(said[1]) - 100 * (own - usual) / usual) < 0.06, "the title's share")


@checks("pipeline-bubble")
def pipeline_bubble(claim: Claim, raw: Raw) -> None:
    """On these ranks sends and receives run this long per step, and nothing else does."""
    known = Exchanges.of(raw)
    bubbles, lengths = [], []
    for rank in claim.finding.ranks:
        for file in raw.files[rank]:
            p2p = [row for row in known.rows if row.file is file and row.kind in P2P]
            passing = {(row.start, row.end, row.stream) for row in p2p}
            others = union(e.span for e in file.plain.device if (e.start, e.end, e.args.get("stream")) not in passing)
            alone = less(union(row.span for row in p2p), others)
            for number, begin, end in file.windows:
                if number is not None:
                    bubbles.append(within(alone, begin, end))
                    lengths.append(end - begin)
    bubble, window = statistics.fmean(bubbles), statistics.fmean(lengths)
    claim.is_near("mean bubble per step", bubble, within=2)
    claim.is_near("mean window of a step", window, within=2)
    ideal = 0.0
    if claim.has("stages"):
        stages, batches = claim.number("stages"), claim.number("microbatches")
        ideal = claim.is_near("bubble of a balanced pipeline", (stages - 1) / (batches + stages - 1), within=1e-3)
    said = re.search(r"([\d.]+) % of the step", claim.finding.title)
    claim.require(said and abs(float(said[1]) - 100 * bubble / window) < 0.06, "the title's share")
    if not ideal:
        claim.require(claim.finding.saving_ns is None, "nobody knows what is inherent")
        return
    # A stage's ranks are as many as the others': the mean over stages is that over ranks.
    compute = claim.is_near("compute per step", mean({rank: _mean_compute(raw, rank) for rank in raw.ranks}), within=2)
    saved = max(0, min(bubble - ideal * window, window - compute / (1 - ideal)))
    claim.same(claim.finding.saving_ns or 0, saved, "the saving", within=max(4, 1e-3 * window))


def _mean_compute(raw: Raw, rank: int) -> float:
    steps = [(file, begin, end) for file, number, begin, end in raw.windows(rank) if number is not None]
    return statistics.fmean(within(file.layers["compute"], begin, end) for file, begin, end in steps)


@checks("ranges-dropped-by-compile")
def dropped_ranges(claim: Claim, raw: Raw) -> None:
    """These ranges are in some steps, and missing from others in which compiled graphs run."""
    named = claim.finding.title.partition(": ")[2]
    names = re.sub(r" and \d+ more$", "", named).split(", ")
    claim.require(claim.number("ranges") >= len(names), "fewer ranges than the title names")
    lost_most, compiled_most = 0, 0
    for rank in claim.finding.ranks:
        compiled, having = set(), defaultdict(set)
        for file in raw.files[rank]:
            for event in [*file.plain.named, *file.plain.operators]:
                number = file.step_at(event.start)
                if event.name.startswith(("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")):
                    compiled.add(number)
                having[event.name].add(number)
        compiled -= {None}
        for name in names:
            lost_most = max(lost_most, len(compiled - having[name]))
        compiled_most = max(compiled_most, len(compiled))
    claim.require(claim.number("steps with compiled graphs but without") >= lost_most > 0, f"{lost_most} steps")
    claim.is_near("steps with compiled graphs", compiled_most)
