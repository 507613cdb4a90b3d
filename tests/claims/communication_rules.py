"""Claims about communication: what is exposed, what is waiting, what is transfer, and at which rate."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from tests.claims.claim import Claim, number_in
from tests.claims.exchanges import LOOSE, WIDTHS, Exchange, Exchanges
from tests.claims.host_rules import recurs, saves_at_most, step_count, step_of
from tests.claims.raw import Raw, mean
from tests.claims.registry import checks
from tests.claims.spans import common, length, less, union, within

SMALL = 4096
LARGE = 1_000_000
CAP = 25 << 20
BUS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send": lambda n: 1.0,
    "recv": lambda n: 1.0,
}
"""What of its size crosses the busiest link, by the number of ranks, as nccl-tests define it."""


_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6}


def missing_ranks(raw: Raw, known: Exchanges) -> int:
    """Ranks that have no file, at least: whoever communicates is not alone."""
    largest = max((row.size or 0 for row in known.rows), default=0)
    return max(0, max(raw.world, largest, 2) - len(raw.ranks))


def exposed_parts(
    raw: Raw, steps: tuple[int, ...], average: Callable[[Iterable[float]], float] = statistics.median
) -> dict[int, dict[str, float]]:
    """By rank, averages over steps: exposed transfer, waiting, neither known; and what compute could overlap with."""
    found = {}
    for rank, rows in exposed_rows(raw, steps).items():
        found[rank] = {name: average(row[name] for row in rows) for name in rows[0]}
    return found


def exposed_rows(raw: Raw, steps: tuple[int, ...], *, usual: bool = False) -> dict[int, list[dict[str, float]]]:
    """The same of each step, by rank; on request without cold steps."""
    known = Exchanges.of(raw)
    cold = raw.cold_steps() if usual else set()
    found = {}
    for rank in raw.ranks:
        rows: list[dict[str, float]] = []
        for file, number, begin, end in raw.windows(rank, steps or None):
            if (raw.files[rank].index(file), number) in cold:
                continue
            own = [row for row in known.rows if row.file is file]
            compute = file.layers["compute"]
            bare = less(file.layers["exposed_communication"], compute)
            timed = [(row, known.transfer(row)) for row in own]
            transfers = union((row.end - t, row.end) for row, t in timed if t is not None)
            transfers = common(transfers, file.layers["exposed_communication"])
            moving = common(transfers, bare)
            matched = common(union(row.span for row, t in timed if t is not None), bare)
            moved, both, every = (within(part, begin, end) for part in (moving, matched, bare))
            least = min(moved + every - both, within(compute, begin, end))
            rows.append(
                {
                    "window": end - begin,
                    "transfer": moved,
                    "wait": both - moved,
                    "unknown": every - both,
                    "all": every,
                    "saved": least,
                }
            )
            rows[-1]["window"] = end - begin
            rows[-1]["open"] = moved + every - both
            whole = union(row.span for row, t in timed if t is None)
            rows[-1]["unmatched"] = within(whole, begin, end)
            rows[-1]["sent"] = within(transfers, begin, end)
            rows[-1]["excess"] = max(min(rows[-1]["sent"] - within(compute, begin, end), moved), 0)
        if rows:
            found[rank] = rows
    return found


@checks("exposed_communication")
def exposed_communication(claim: Claim, raw: Raw) -> None:
    """Communication runs and no kernel computes; what is waiting of it is known from the other ranks."""
    steps = claim.finding.steps
    step = step_of(claim, raw)
    parts = exposed_parts(raw, steps, statistics.fmean if claim.of_mean else statistics.median)
    known = Exchanges.of(raw)
    rows = [row for own in exposed_rows(raw, steps, usual=True).values() for row in own]
    exposed = claim.is_near("exposed communication", statistics.fmean(row["all"] for row in rows))
    waits = claim.number("of which waiting for later ranks") if claim.has("of which waiting for later ranks") else 0.0
    unknown = claim.number("of which waiting and transfer") if claim.has("of which waiting and transfer") else 0.0
    # rankscope may match more than is matched here, or less.
    here, wait = (statistics.fmean(row[name] for row in rows) for name in ("unknown", "wait"))
    claim.require(abs(waits - wait) <= max(here, unknown) + 0.02 * exposed + 2, f"the wait is {wait:.0f}")
    if claim.has("collective with the most time"):
        _heaviest(claim, known, steps)
    if claim.has("ranks without a complete trace, at least"):
        missing = missing_ranks(raw, known)
        lacking = str(claim.take("ranks without a complete trace, at least").value)
        claim.require(int(lacking.split()[0].replace(",", "")) == missing > 0, f"{missing} ranks are missing")
        claim.require(claim.finding.saving_ns is None and "is unknown" in claim.finding.title, "nobody knows")
        of = claim.is_near("mean step time (all ranks)", statistics.fmean(row["window"] for row in rows))
        said = re.match(r"(\d+) % of .* is exposed communication", claim.finding.title)
        claim.require(said, "no share in the title")
        assert said is not None
        claim.same(float(said[1]), 100 * exposed / of, "the title's share", within=0.51)
        return
    claim.require(not missing_ranks(raw, known), "ranks are missing")
    name = next(each.name for each in claim.left if each.name.startswith("without waiting, rank "))
    least = parts[int(re.findall(r"\d+", name)[0])]
    shown = claim.number(name)
    room = max(least["unknown"], unknown) + 0.02 * least["all"] + 2
    claim.require(abs(shown - least["open"]) <= room, f"without waiting it is {least['open']:.0f}")
    claim.require(shown <= exposed + room, f"the lowest is above the mean, {exposed:.0f}")
    if claim.has("compute that could run"):
        claim.require(claim.number("compute that could run") <= least["saved"] + room, "it does not compute as long")
    saves_at_most(claim, min(shown, least["saved"] + room), step)
    title = re.match(r"(?:At most )?(\d+) % of .* is exposed communication", claim.finding.title)
    claim.require(title, "no share in the title")
    assert title is not None
    claim.same(float(title[1]), 100 * shown / step, "the title's share", within=0.51)


def _heaviest(claim: Claim, known: Exchanges, steps: tuple[int, ...]) -> None:
    said = str(claim.take("collective with the most time").value)
    time: dict[tuple[str, int | None], int] = defaultdict(int)
    for rank in known.raw.ranks:
        for row in known.of_rank(rank, steps):
            transfer = known.transfer(row)
            time[row.kind, row.bytes] += row.duration if transfer is None else transfer
    kind = said.split(" ")[0].rstrip(":")
    mine = {key: value for key, value in time.items() if key[0] == kind}
    claim.require(
        mine and max(mine.values()) >= 0.9 * max(time.values()), f"most of it is in {max(time, key=time.__getitem__)}"
    )
    share = re.search(r": (\d+) % of it$", said)
    claim.require(share, "no share")
    assert share is not None
    largest = max(mine.values(), default=0) / max(sum(time.values()), 1)
    claim.require(abs(int(share[1]) / 100 - largest) < 0.06, f"it is {largest:.2f} of the transfer")
    claim.require(("most of it" in claim.finding.title) <= (int(share[1]) >= 50), "not most of it")
    size = re.search(r" of ([\d.,e-]+) (B|kB|MB)\b", said)
    if size is not None:
        sizes = {b for _, b in mine if b is not None}
        if kind == "all_gather":
            # Gloo's ranges tell what a rank gives; what is gathered is as much of each rank.
            sizes |= {b * len(known.raw.ranks) for b in sizes}
        claim.require(
            any(
                abs(b / {"B": 1, "kB": 1e3, "MB": 1e6}[size[2]] - number_in(size[1])) <= 0.006 * number_in(size[1])
                for b in sizes
            ),
            f"no {kind} has this size, but {set(mine)}",
        )


@checks("small_problem")
def small_problem(claim: Claim, raw: Raw) -> None:
    """Each rank's transfers that nothing hides last longer than its compute."""
    steps = claim.finding.steps
    step = step_of(claim, raw)
    parts = exposed_parts(raw, steps)
    transfer = {rank: row["sent"] for rank, row in parts.items()}
    exposed = {rank: row["transfer"] for rank, row in parts.items()}
    compute = {r: raw.per_step(r, "compute", steps) for r in raw.ranks}
    # rankscope may match collectives that are not matched here.
    room = mean({rank: row["unmatched"] for rank, row in parts.items()}) + 2
    sent, bare = claim.number("transfer"), claim.number("exposed transfer")
    claim.require(0.95 * mean(transfer) - 2 <= sent <= 1.05 * mean(transfer) + room, f"transfer: {mean(transfer):.0f}")
    claim.require(0.95 * mean(exposed) - 2 <= bare <= 1.05 * mean(exposed) + room, f"exposed: {mean(exposed):.0f}")
    claim.is_near("compute", mean(compute))
    bound = mean({rank: row["excess"] for rank, row in parts.items()})
    saves_at_most(claim, 1.02 * bound + room, step)
    claim.require(
        all(transfer[r] + room > 0.98 * compute[r] for r in claim.finding.ranks), "a rank that computes longer"
    )


@checks("small_collectives")
def small_collectives(claim: Claim, raw: Raw) -> None:
    """Every step of every rank has these small collectives, and they take this long."""
    steps = claim.finding.steps
    step = step_of(claim, raw)
    known = Exchanges.of(raw)
    calls, total, spare = {}, {}, {}
    kinds: Counter[str] = Counter()
    for rank in raw.ranks:
        by_step: dict[int | None, list[Exchange]] = defaultdict(list)
        for row in known.of_rank(rank, steps):
            if row.kind in ("send", "recv"):
                continue
            if row.kind == "barrier" or (row.bytes is not None and row.bytes <= SMALL):
                by_step[row.step].append(row)
                kinds[row.kind] += 1
        often = [rows for rows in by_step.values() if len(rows) > 1]
        count = step_count(raw, rank, steps)
        calls[rank] = sum(len(rows) for rows in often) / count
        total[rank] = sum(row.duration for rows in often for row in rows) / count
        spare[rank] = sum(sum(r.duration for r in rows) - min(r.duration for r in rows) for rows in often) / count
        claim.require(not steps or recurs(claim, len(often), count), "a single step has them")
    least = min(spare, key=lambda rank: (spare[rank], rank))
    claim.is_near("small collectives", calls[least], within=0.51)
    said = claim.take("most frequent").value
    claim.require(kinds[str(said)] == max(kinds.values()), f"most of them are {kinds}")
    claim.is_near(f"time in them per step, rank {least}", total[least])
    if missing_ranks(raw, known):
        claim.require(claim.finding.saving_ns is None, "all of it may be waiting for ranks without a file")
    else:
        saves_at_most(claim, spare[least], step)
    claim.is_ranks(raw.ranks)


@checks("slow_network")
def slow_network(claim: Claim, raw: Raw) -> None:
    """These collectives have this bus bandwidth; others of their kind and type, no larger, reach the better one."""
    steps = claim.finding.steps
    step = step_of(claim, raw)
    known = Exchanges.of(raw)
    said = re.match(r"(\S+) of ([\d.,]+) MB in group (.*) moves ", claim.finding.title)
    claim.require(said, "the title names no group")
    assert said is not None
    rates: dict[tuple[str, str, int, str | None], list[float]] = defaultdict(list)
    transfers: dict[tuple[str, str, int, str | None], list[int]] = defaultdict(list)
    seen = set()
    for row in known.rows:
        transfer = known.transfer(row)
        if not transfer or row.bytes is None or row.bytes < LARGE or row.kind in LOOSE or row.match in seen:
            continue
        seen.add(row.match)
        n = known.expected(row)
        key = row.kind, row.group, row.bytes, row.dtype
        rates[key].append(row.bytes / transfer * BUS[row.kind](n))
        transfers[key].append(transfer)
    kind, group = said[1], said[3]
    claim.is_ranks({row.rank for row in known.rows if row.group == group})
    own = [
        k
        for k in rates
        if k[0] == kind and k[1] == group and abs(k[2] / 1e6 - number_in(said[2])) <= 0.006 * k[2] / 1e6
    ]
    claim.require(own, f"no {kind} of group {group} of that size")
    (key,) = own
    rate = statistics.median(rates[key])
    alike = [v for k, v in rates.items() if k[0] == kind and k[2] < key[2] and k[3] == key[3] and len(v) >= 3]
    better = max(map(statistics.median, alike))
    claim.is_near("bus bandwidth", rate, relative=0.02, within=0.01)
    claim.is_near("best bus bandwidth at a smaller size", better, relative=0.05, within=0.01)
    measured = claim.number("collectives measured")
    claim.require(measured >= 3 and rate < 0.5 * better * 1.02, "it is not slow, or hardly measured")
    median = claim.is_near("median transfer", statistics.median(transfers[key]), relative=0.02)
    saves_at_most(claim, 1.05 * median * measured * (1 - rate / better) / max(len(steps), 1), step)


@checks("bucket_size")
def bucket_size(claim: Claim, raw: Raw) -> None:
    """The all-reduces that the backward calls have these sizes, and outlast its compute by this."""
    steps = claim.finding.steps
    step = step_of(claim, raw)
    by_rank: dict[int, list[dict[str, float]]] = defaultdict(list)
    known = Exchanges.of(raw)
    for rank, files in raw.files.items():
        for file in files:
            accumulating = [e for e in file.plain.operators if "AccumulateGrad" in e.name]
            engine = [e for e in file.plain.operators if e.name.startswith("autograd::engine::evaluate_function")]
            for number in sorted(
                n for n in {s for s, _, _ in file.windows} if n is not None and (not steps or n in steps)
            ):
                rows = [
                    row
                    for row in known.of_rank(rank, (number,))
                    if row.file is file and row.kind == "all_reduce" and None not in (row.launch, row.bytes)
                    and (not file.on_device or any(e.start <= row.launch < e.end for e in accumulating))
                ]  # fmt: skip
                if not rows:
                    continue
                rows.sort(key=lambda row: row.launch or 0)
                work = [e for e in file.computing if e.launch and any(o.start <= e.launch < o.end for o in engine)]
                work = [e for e in work if file.step_at(e.launch) == number]
                last = max((e.end for e in work), default=0)
                first = min((e.start for e in work), default=0)
                compute = file.layers["compute"]
                waits = [known.wait(row) or 0 for row in rows]
                exposed = [
                    min(length(less([row.span], compute)), row.duration - wait)
                    for row, wait in zip(rows, waits, strict=True)
                ]
                tail = min(max(rows[-1].end - last, 0), rows[-1].duration - waits[-1])
                by_rank[rank].append(
                    {
                        "buckets": len(rows), "bytes": sum(row.bytes or 0 for row in rows), "last": rows[-1].bytes or 0,
                        "tail": min(tail, exposed[-1]), "backward": last - first, "exposed": sum(exposed),
                    }
                )  # fmt: skip
    usual = {
        rank: {name: statistics.median(row[name] for row in rows) for name in rows[0]} for rank, rows in by_rank.items()
    }
    large = "last bucket" in claim.finding.title

    def saving(row: dict[str, float]) -> float:
        if large:
            return min(row["tail"] * (1 - CAP / row["last"]), row["backward"])
        return row["exposed"] * (1 - max(-(-row["bytes"] // CAP), 4) / row["buckets"])

    worst = max(usual, key=lambda rank: (round(saving(usual[rank])), -rank))
    row = usual[worst]
    claim.is_near("buckets", row["buckets"], within=0.51)
    claim.is_near("gradients", row["bytes"])
    claim.is_near("last bucket", row["last"])
    claim.is_near("time after the backward's compute", row["tail"])
    claim.is_near("backward", row["backward"])
    claim.is_near("exposed, all buckets", row["exposed"])
    part = 1.0
    if claim.of_mean:
        part = len(by_rank[worst]) / len(raw.windows(worst))
        claim.require(2 <= len(by_rank[worst]) < 0.5 * len(raw.windows(worst)), "one step or most have buckets")
        claim.is_near("share of the steps that have buckets", part, within=1e-9)
    saves_at_most(claim, saving(row) * part * 1.02 + 2, step)
    claim.require(row["last"] > 2 * CAP if large else row["buckets"] > 4, "its buckets are neither large nor many")


def splits_of(value: object) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", str(value or ""))]


@checks("exchange_imbalance")
def exchange_imbalance(claim: Claim, raw: Raw) -> None:
    """The splits that the ranks of the group record send this rank so much more than the others."""
    dispatched = "dispatched" in claim.finding.title
    received: dict[int, float] = defaultdict(float)
    calls = 0
    for files in raw.files.values():
        own: list[tuple[list[int], list[int], float]] = []
        for file in files:
            events = [e for e in file.plain.device if splits_of(e.args.get("In split size"))]
            events = events or [e for e in file.plain.operators if splits_of(e.args.get("In split size"))]
            for event in events:
                sent, got = splits_of(event.args["In split size"]), splits_of(event.args.get("Out split size"))
                width = WIDTHS.get(str(event.args.get("dtype") or "").lower(), 0)
                own.append((sent, got, float(event.args.get("In msg nelems") or 0) * width / max(sum(sent), 1)))
        kept, place = [], 0
        while place < len(own):
            sent, got, size = own[place]
            mirrored = place + 1 < len(own) and own[place + 1][:2] == (got, sent) and sent != got
            if mirrored or not dispatched:
                kept.append((sent, size))
            place += 2 if mirrored else 1
        calls = max(calls, len(kept))
        for sent, size in kept:
            for peer, rows in enumerate(sent):
                received[peer] += rows * size
    said = re.match(r"Rank (\d+) receives", claim.finding.title)
    claim.require(said and received, "no splits are recorded")
    assert said is not None
    rank, usual = int(said[1]), statistics.fmean(received.values())
    count = max(len(claim.finding.steps), 1)
    claim.take("group")
    claim.is_near(f"rank {rank} receives", received[rank] / count, relative=0.01)
    claim.is_near("mean of the group", usual / count, relative=0.01)
    claim.is_near("relative to the mean", received[rank] / usual, within=0.01)
    claim.is_near("ranks from", len(claim.finding.ranks))
    claim.require(claim.number("exchanges of a rank") <= max(calls, 1), f"there are {calls}")
    claim.require(all(received[each] >= 1.19 * usual for each in claim.finding.ranks), "a rank that receives no more")
