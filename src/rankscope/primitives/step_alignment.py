"""Recurring local time: what a rank spends at the same place of its program in two steps.

Hosts have hiccups: now one operator takes ten times as long as usual, now another. In a step of a few milliseconds one
such hiccup is a tenth of it, as much as a fault worth reporting. But a hiccup does not come at the same place of the
program twice, and a fault does. So two steps of a rank are aligned, the local time of each is cut at the ends of the
pieces of work (kernels and copies of the busiest stream; without a device top-level operators), and

    recurring local time of two steps = Σ over pieces min(local time up to the piece in one step, in the other)

where the time before a piece belongs to it: the gap in which the device waited for its launch, and the piece itself.
The minimum is lower than either, equally on every rank; ranks with the same program are compared in the same two steps.
This is the minimum of repeated measurements, taken place by place. Also computed is the usual pace of a step (the
median of each place over the steps, and the geometric mean of these), and the pace of each step (the geometric mean
over its places). A slow host is slow at many places, while a sum can be dominated by a single place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.activity import computing_operators, covered_time, gloo_ranges, with_category
from rankscope.primitives.intervals import Int64
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.steps import host_steps
from rankscope.primitives.synchronization import host_waits

PAIRS = 128  # of a long recording fewer of those, so that there are about so many pairs
ALIGNED = 400  # where more pieces in a row than that differ, they count as one
COLUMNS = (
    "step", "other", "elapsed_ns", "other_elapsed_ns", "waited_ns", "recurring_ns", "most_ns", "hiccup_ns", "usual_ns",
    "paced_ns", "other_paced_ns",
)  # fmt: skip
USUAL = 3  # steps at least of which a place's median is taken
SHORT = 1_000  # ns: of shorter pieces clocks tell too little
NEIGHBOURS = 8  # a step is laid beside so many that follow it at most


def work_pieces(
    device: pl.DataFrame, operators: pl.DataFrame, annotations: pl.DataFrame, extra: str | None
) -> tuple[Int64, Int64]:
    """Where a rank's time is cut: ends, ns, ascending, and a number for what each piece is.

    Args:
        device: device_events: start_ns, end_ns, name, kind, is_collective, stream.
        operators: host_ops, read where there is no device.
        annotations: likewise.
        extra: a regular expression of further kernel names that are communication.
    """
    if device.height:
        works = with_category(device, extra).filter(pl.col("category") != COMMUNICATION)
        # Pieces of one stream end in the order of the program; those of several in any.
        length = (pl.col("end_ns") - pl.col("start_ns")).sum()
        busiest = works.group_by("stream").agg(length.alias("ns")).sort("ns", "stream")["stream"]
        found = works.filter(pl.col("stream").eq_missing(busiest[-1])) if busiest.len() else works
    else:
        found = computing_operators(operators, gloo_ranges(operators, annotations))
    found = found.sort("end_ns", "start_ns")
    number = found.select(pl.col("name").rank("dense").fill_null(0).cast(pl.Int64)).to_series()
    return found["end_ns"].to_numpy(), number.to_numpy()


@dataclass(frozen=True)
class StepBounds:
    """From when to when each step is looked at, and a rank's own time by then, ns; arrays, by step ascending."""

    step: Int64
    begin: Int64
    begin_own: Int64
    end: Int64
    end_own: Int64

    @classmethod
    def of(cls, collectives: pl.DataFrame) -> StepBounds:
        """From the last collective of one step to that of the next; else from the step's own first.

        Args:
            collectives: step (null where none is told), end_ns, own_ns (own time by the end).
        """
        before, after = pl.col("step").forward_fill(), pl.col("step").backward_fill()
        # A step whose range was lost, or began before the file, lies beside its neighbours.
        guess = pl.when(before.is_null()).then(after - 1).when(after.is_null() | (after == before + 2)).then(before + 1)
        step = pl.coalesce("step", guess)
        found = (
            collectives.sort("end_ns")
            .with_columns(step.alias("step"))
            .drop_nulls("step")
            .group_by("step")
            .agg(pl.col("end_ns", "own_ns").first().name.suffix("_first"), pl.col("end_ns", "own_ns").last())
            .sort("step")
        )
        follows = (pl.col("step") == pl.col("step").shift(1) + 1).fill_null(False)
        begin = (pl.when(follows).then(pl.col(n).shift(1)).otherwise(f"{n}_first") for n in ("end_ns", "own_ns"))
        frame = found.select(
            "step", *(each.alias(n) for each, n in zip(begin, ("begin", "begin_own"), strict=True)), "end_ns", "own_ns"
        )
        return cls(*(frame[name].to_numpy() for name in frame.columns))


def host_pieces(
    operators: pl.DataFrame, runtime: pl.DataFrame, annotations: pl.DataFrame
) -> tuple[Int64, Int64, Int64, StepBounds]:
    """The same of the host: ends of top-level operators, what each is, the host's own time by then, and its steps.

    Its own time is that outside calls in which it waits for the device. A host that runs ahead may
    be slow at no cost, and one that fell behind by chance has its device wait for what the others' do not; only a host
    that itself takes longer, and again, is a slow one.

    Args:
        operators: host_ops: end_ns, name, depth.
        runtime: runtime_calls: start_ns, end_ns, name.
        annotations: start_ns, end_ns, on_device, step.
    """
    steps = host_steps(annotations).unique("step", keep="first", maintain_order=True).sort("step")
    top = operators.filter(pl.col("depth") == 0).sort("end_ns")
    number = top.select(pl.col("name").rank("dense").fill_null(0).cast(pl.Int64)).to_series().to_numpy()
    calls = covered_time(host_waits(runtime))
    at, start, end = top["end_ns"].to_numpy(), steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    own, begun, ended = (each - calls.before(each) for each in (at, start, end))
    return at, number, own, StepBounds(steps["step"].to_numpy(), start, begun, end, ended)


def recurring_times(at: Int64, code: Int64, own: Int64, bounds: StepBounds) -> pl.DataFrame:
    """The recurring local time of each pair of steps of a trace.

    Args:
        at: ends of pieces, ns, ascending.
        code: what each is.
        own: the rank's own time by then, ns.
        bounds: of the steps.

    Returns:
        step, other (a later one), elapsed_ns and other_elapsed_ns (how long the two took), waited_ns (what is not own
        time, in the one that has less of it), recurring_ns, most_ns (of it, the most at one place beyond what that
        place takes in the other steps), hiccup_ns (that of either step), usual_ns (what a step that does what
        the first does usually takes: `_paces`), paced_ns and other_paced_ns (what the two would take if all their
        places went as fast as they do on the geometric mean).
    """
    first = np.searchsorted(at, bounds.begin, side="right")
    last = np.maximum(np.searchsorted(at, bounds.end, side="right"), first)
    cuts = [
        (
            int(bounds.step[i]),
            code[first[i] : last[i]],
            np.diff(np.concatenate([bounds.begin_own[i : i + 1], own[first[i] : last[i]], bounds.end_own[i : i + 1]])),
        )
        for i in range(bounds.step.size)
    ]
    taken = dict(zip(bounds.step.tolist(), (bounds.end - bounds.begin).tolist(), strict=True))
    waited = dict(zip(taken, (bounds.end - bounds.begin - bounds.end_own + bounds.begin_own).tolist(), strict=True))
    alike = _alike(cuts)
    usual, paces = _usual(cuts, alike), _paces(alike)
    rows = [
        (
            *(one[0], other[0], taken[one[0]], taken[other[0]], min(waited[one[0]], waited[other[0]])),
            *_common(one, other, usual(one, other)),
            *(*paces.get(one[0], (None, None)), paces.get(other[0], (None, None))[1]),
        )
        for one, other in _pairs(cuts)
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(COLUMNS, pl.Int64), orient="row")


_Cut = tuple[int, Int64, Int64]


def _pairs(cuts: list[_Cut]) -> Iterator[tuple[_Cut, _Cut]]:
    ahead = min(max(PAIRS // max(len(cuts), 1), 1), NEIGHBOURS)
    for index, one in enumerate(cuts):
        for other in itertools.islice(cuts, index + 1, index + 1 + ahead):
            yield one, other


def _alike(cuts: list[_Cut]) -> dict[bytes, list[_Cut]]:
    """Groups of steps with the same work."""
    alike: dict[bytes, list[_Cut]] = {}
    for cut in cuts:
        alike.setdefault(cut[1].tobytes(), []).append(cut)
    return alike


def _usual(cuts: list[_Cut], alike: dict[bytes, list[_Cut]]) -> Callable[[_Cut, _Cut], Int64]:
    """What the places of the first of two steps take in the others: the median, of an even number the lower."""
    by_code = np.concatenate([np.empty(0, dtype=np.int64), *(cut[1] for cut in cuts)])
    by_own = np.concatenate([np.empty(0, dtype=np.int64), *(cut[2][:-1] for cut in cuts)])

    def found(one: _Cut, other: _Cut) -> Int64:
        others = (cut[2] for cut in alike[one[1].tobytes()] if cut[0] not in (one[0], other[0]))
        rest = list(itertools.islice(others, NEIGHBOURS))
        if rest:
            middle: Int64 = np.sort(np.stack(rest), axis=0)[(len(rest) - 1) // 2]
            return middle
        # No other step does the same: what its like takes wherever it comes.
        medians = {code: np.median(by_own[by_code == code]) for code in np.unique(one[1])}
        return np.array([*(medians[code] for code in one[1]), one[2][-1]]).astype(np.int64)

    return found


def _paces(alike: dict[bytes, list[_Cut]]) -> dict[int, tuple[int, int]]:
    """By step the geometric mean over places, times the places: of the median over steps that do the same, and its own.

    Of a sum one place could be most, and of three steps two have a hiccup at the same one in one of ten runs; here it
    weighs no more than any other. Steps of which fewer than `USUAL` do the same have none.
    """
    found: dict[int, tuple[int, int]] = {}
    for same in alike.values():
        if len(same) < USUAL:
            continue
        each = np.stack([own for _, _, own in same])
        middle = np.median(each, axis=0)
        worth = middle >= SHORT
        if worth.any():
            usual = _pace(middle[worth])
            found.update((cut[0], (usual, _pace(own[worth]))) for cut, own in zip(same, each, strict=True))
    return found


def _pace(own: npt.NDArray[np.float64] | Int64) -> int:
    return round(float(np.exp(np.log(np.maximum(own, 1)).mean())) * own.size)


def _common(one: _Cut, other: _Cut, usual: Int64) -> tuple[int, int, int]:
    """Σ of the minima between the ends of pieces that both have; the most beyond the usual at one place, of the minima
    and of either step."""
    mine, theirs = _anchors(one[1], other[1])
    first, second, third = _between(one[2], mine), _between(other[2], theirs), _between(usual, mine)
    both = np.minimum(first, second)
    return int(both.sum()), int((both - third).max()), int((np.maximum(first, second) - third).max())


def _between(own: Int64, anchors: Int64) -> Int64:
    until = np.cumsum(own)
    found: Int64 = np.diff(until[np.append(anchors, own.size - 1)], prepend=0)
    return found


def _anchors(code: Int64, other: Int64) -> tuple[Int64, Int64]:
    """The pieces that two steps have in common, in order: their places in the one and in the other."""
    least = min(code.size, other.size)
    if code.size == other.size and (code == other).all():
        return np.arange(least), np.arange(least)
    differs = np.flatnonzero(code[:least] != other[:least])
    head = int(differs[0]) if differs.size else least
    differs = np.flatnonzero(code[code.size - least :] != other[other.size - least :])
    tail = min(least - 1 - int(differs[-1]) if differs.size else least, least - head)
    ends = code.size - tail, other.size - tail
    blocks = [(0, 0, head)]
    if max(ends) - head <= ALIGNED:
        middle = SequenceMatcher(None, code[head : ends[0]].tolist(), other[head : ends[1]].tolist(), autojunk=False)
        blocks += [(head + a, head + b, size) for a, b, size in middle.get_matching_blocks()]
    blocks.append((*ends, tail))
    found = [np.concatenate([np.arange(at[i], at[i] + at[2]) for at in blocks]) for i in (0, 1)]
    return found[0], found[1]
