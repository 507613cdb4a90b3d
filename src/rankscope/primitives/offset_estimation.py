"""The clock offset between two ranks, from the ends of the collectives that both ran.

Neither clock is trusted, and no pair of events is known beforehand. A synchronizing collective ends on all ranks at
nearly the same time, so pairs that could be the same collective vote with the difference of their ends: many agree on
the true offset. Layers and steps repeat, so a shift by one of them also collects votes, and the densest bins are only
hypotheses. Each is extended from its seed over the complete timeline (following the drift), and judged by its evidence:
how much better the ends agree than at random, in nats. Two hypotheses with similar evidence are ambiguous, and reported
as such.

In: the ends of two timelines, ns, with their labels. Out: offset and drift of one from the other, with the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64

Bool = npt.NDArray[np.bool_]

SEED = 64  # events that vote together
CHUNK_SPAN = 250_000_000  # ns in which drift is too small to matter: 100 ppm are 25 µs
WIDTHS = (100_000, 1_000_000)  # ns: widths of the bins of votes; ends agree to 31 µs with NCCL, to ms on a busy host
DRIFT = 150e-6  # the largest relative drift of two clocks
NEAR = 2_000_000  # ns: ends further apart are no evidence for each other
BLURS = tuple(2_000 * 2**n for n in range(11))  # ns: candidates for how well ends agree, 2 µs to 2 ms
LIKE = 0.8  # a second hypothesis with this share of the first's evidence makes both doubtful
CLEAR = 12.0  # nats by which the first must be ahead: with a handful of events, a random match comes close
ENOUGH = 1.0  # nats per event: with less, other seeds are tried
TRUST = 0.5  # nats per event: enough to confirm an offset from another group's collectives
PEAKS = 3
MOST_PAIRS = 60_000  # the number of pairs that vote in one seed


@dataclass(frozen=True)
class Timeline:
    """The collectives of one group on one rank, in the order of their launches.

    Attributes:
        end: when each ended, ns; not before the ends of those that were launched earlier.
        kind: the kind of collective, as a number ≥ 0.
        full: kind, type and size together as a number; −1 if type or size is unknown.
        step: the step that launched it; −1 if unknown.
        one_sided: whether ranks may end it at different times: broadcast, reduce, gather, scatter.
        uneven: whether ranks may transfer different amounts, and end it at different times: all_to_all, SendRecv.
        start: when each started, ns.
    """

    end: Int64
    kind: Int64
    full: Int64
    step: Int64
    one_sided: Bool
    uneven: Bool
    start: Int64
    _by_kind: Int64 = field(init=False, repr=False)
    _key: Int64 = field(init=False, repr=False)
    _span: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        span = int(self.end[-1] - self.end[0]) + 3 if self.end.size else 3
        order = np.argsort(self.kind, kind="stable")
        object.__setattr__(self, "_span", span)
        object.__setattr__(self, "_by_kind", order)
        object.__setattr__(self, "_key", self.kind[order] * span + (self.end[order] - self.origin + 1))

    @property
    def origin(self) -> int:
        """The first end."""
        return int(self.end[0]) if self.end.size else 0

    def __len__(self) -> int:
        return int(self.end.size)

    def take(self, rows: Int64) -> Timeline:
        """Some of its events, in order."""
        return Timeline(
            self.end[rows],
            self.kind[rows],
            self.full[rows],
            self.step[rows],
            self.one_sided[rows],
            self.uneven[rows],
            self.start[rows],
        )

    def pairs(self, other: Timeline, at: Int64, reach: int, *, same_step: bool) -> tuple[Int64, Int64]:
        """Events of this and another timeline that could be the same collective.

        Args:
            other: the other timeline.
            at: the estimated ends of the other's events on this one's clock, ns.
            reach: the largest distance of the ends, ns.
            same_step: leave out pairs whose steps are known and differ.

        Returns:
            indices into this one's events and into the other's.
        """
        low = np.clip(at - reach - self.origin + 1, 0, self._span - 1)
        high = np.clip(at + reach - self.origin + 1, -1, self._span - 1)
        first = np.searchsorted(self._key, other.kind * self._span + low, side="left")
        last = np.searchsorted(self._key, other.kind * self._span + high, side="right")
        counts = np.maximum(last - first, 0)
        other_rows = np.repeat(np.arange(len(other)), counts)
        rows = self._by_kind[np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(other_rows.size)]
        keep = compatible(self.full[rows], other.full[other_rows])
        if same_step:
            keep &= compatible(self.step[rows], other.step[other_rows])
        return rows[keep], other_rows[keep]


def compatible(a: Int64, b: Int64) -> Bool:
    """Whether two labels are equal, or one of them is unknown."""
    fits: Bool = (a == b) | (a < 0) | (b < 0)
    return fits


@dataclass(frozen=True)
class OffsetEstimate:
    """The position of a timeline on the reference's clock.

    Attributes:
        shift: the offset to add to each of its ends, ns.
        blur: how well ends agree after that, ns.
        evidence: strength of the evidence in the ends, nats.
        anchored: what distinguishes it from other hypotheses: `step`, `clock` (another group's alignment, or the
            host's), `order` (equal counts of each kernel on both) or `votes`.
        rival: the best other hypothesis, if there is one.
    """

    shift: Int64
    blur: int
    evidence: float
    anchored: str = "votes"
    rival: OffsetEstimate | None = None

    @property
    def offset(self) -> int:
        """The shift in the middle of the timeline, ns."""
        return int(self.shift[self.shift.size // 2])

    @property
    def ambiguous(self) -> bool:
        """Whether another offset fits nearly as well."""
        if self.anchored != "votes" or self.rival is None:
            return False
        return not self.clearer_than(self.rival)

    def clearer_than(self, other: OffsetEstimate) -> bool:
        """Whether the evidence for this offset is clearly above that for another."""
        return other.evidence < min(LIKE * self.evidence, self.evidence - CLEAR)


def estimate_offset(
    reference: Timeline, other: Timeline, guess: int = 0, *, trusted: bool = False
) -> OffsetEstimate | None:
    """Find the other timeline's position on the reference's clock.

    Args:
        reference: the timeline whose clock is used.
        other: the timeline to place.
        guess: a further offset to try, ns: 0 for wall clocks that may agree.
        trusted: whether the guess comes from another group's collectives: it is used if the ends agree with it.

    Returns:
        None if no offset has evidence.
    """
    if not len(reference) or not len(other):
        return None
    chunks = _chunks(other)
    if trusted:
        estimate = _grow(reference, other, chunks, len(chunks) // 2, guess, by_step=False)
        if estimate is not None and estimate.evidence > TRUST * len(other):
            return replace(estimate, anchored="clock")
    known = bool(np.isin(other.step[other.step >= 0], reference.step[reference.step >= 0]).any())
    if known:
        # Step numbers distinguish repetitions, and are used unless the ends are strong evidence against them.
        stepped = _best(reference, other, chunks, None, by_step=True)
        if stepped is not None and stepped.evidence > 1.5 * ENOUGH * len(other):
            return replace(stepped, anchored="step")
        free = _best(reference, other, chunks, guess, by_step=False)
        if stepped is not None and (free is None or free.evidence <= 2 * stepped.evidence + 8):
            return replace(stepped, anchored="step")
        return free
    return _best(reference, other, chunks, guess, by_step=False)


def _chunks(line: Timeline) -> list[Int64]:
    """Runs of consecutive events, each short in number and in time."""
    ends, bounds, first = line.end, [0], 0
    while first < ends.size:
        last = min(first + SEED, int(np.searchsorted(ends, ends[first] + CHUNK_SPAN, side="right")))
        first = max(last, first + 1)
        bounds.append(first)
    return [np.arange(a, b) for a, b in pairwise(bounds)]


def _best(
    reference: Timeline, other: Timeline, chunks: list[Int64], guess: int | None, *, by_step: bool
) -> OffsetEstimate | None:
    grown: list[OffsetEstimate] = []
    # Start in the middle, which both ranks most likely recorded. Use other seeds only if that is inconclusive.
    order = sorted(range(len(chunks)), key=lambda c: (-min(chunks[c].size, SEED // 2), abs(c - len(chunks) / 2)))
    for seed in order[:3]:
        offsets = _hypotheses(reference, other.take(chunks[seed]), by_step=by_step)
        if guess is not None:
            offsets.append(guess)
        for offset in offsets:
            estimate = _grow(reference, other, chunks, seed, offset, by_step=by_step)
            if estimate is not None and not any(_same(estimate, known) for known in grown):
                grown.append(estimate)
        grown.sort(key=lambda estimate: -estimate.evidence)
        if grown and grown[0].evidence > ENOUGH * len(other):
            break
    if not grown:
        return None
    return replace(grown[0], rival=grown[1] if len(grown) > 1 else None)


def _same(one: OffsetEstimate, other: OffsetEstimate) -> bool:
    return bool(np.median(np.abs(one.shift - other.shift)) < max(50_000, 4 * min(one.blur, other.blur)))


def _hypotheses(reference: Timeline, seed: Timeline, *, by_step: bool) -> list[int]:
    """The offsets with most votes, in narrow bins and in wide ones."""
    everywhere = np.full(len(seed), reference.origin, dtype=np.int64)
    reach = int(reference.end[-1]) - reference.origin + 1
    voters = seed
    if len(reference) * len(seed) > MOST_PAIRS:
        few = max(MOST_PAIRS // len(reference), 16)
        start = max((len(seed) - few) // 2, 0)
        voters = seed.take(np.arange(start, min(start + few, len(seed))))
    rows, voter_rows = reference.pairs(voters, everywhere[: len(voters)], reach, same_step=by_step)
    if by_step:
        both = (reference.step[rows] >= 0) & (voters.step[voter_rows] >= 0)
        rows, voter_rows = rows[both], voter_rows[both]
    strict = ~voters.one_sided[voter_rows]
    if strict.any():
        rows, voter_rows = rows[strict], voter_rows[strict]
    differences = np.sort(reference.end[rows] - voters.end[voter_rows])
    peaks: list[int] = []
    for width in WIDTHS:
        for peak in _peaks(differences, width):
            if all(abs(peak - other) > width // 2 for other in peaks):
                peaks.append(peak)
    return peaks


def _peaks(differences: Int64, width: int) -> list[int]:
    """The medians of the densest disjoint bins of a width, densest first."""
    if not differences.size:
        return []
    last = np.searchsorted(differences, differences + width, side="right")
    votes = last - np.arange(differences.size)
    peaks = []
    for _ in range(PEAKS):
        top = int(np.argmax(votes))
        if votes[top] <= 0:
            break
        inside = differences[top : last[top]]
        peaks.append(int(inside[inside.size // 2]))
        votes = np.where(np.abs(differences - differences[top]) <= width, 0, votes)
    return peaks


def _densest(differences: Int64, width: int) -> int | None:
    """The median of the densest bin."""
    peaks = _peaks(np.sort(differences), width)[:1]
    return peaks[0] if peaks else None


def _grow(
    reference: Timeline, other: Timeline, chunks: list[Int64], seed: int, offset: int, *, by_step: bool
) -> OffsetEstimate | None:
    """Follow an offset from its seed outwards, then compute its evidence."""
    center = np.array([(int(other.end[c[0]]) + int(other.end[c[-1]])) // 2 for c in chunks], dtype=np.int64)
    shifts = np.full(len(chunks), offset, dtype=np.int64)
    supported = np.zeros(len(chunks), dtype=np.bool_)
    for direction in (1, -1):
        last = seed
        steps = range(seed, len(chunks)) if direction == 1 else range(seed - 1, -1, -1)
        for index in steps:
            rows = other.take(chunks[index])
            predicted = int(shifts[last])
            distance = abs(int(center[index] - center[last]))
            reach = int(WIDTHS[1] // 2 + DRIFT * distance)
            reference_rows, chunk_rows = reference.pairs(rows, rows.end + predicted, reach, same_step=by_step)
            strict = ~rows.one_sided[chunk_rows]
            if strict.any():
                reference_rows, chunk_rows = reference_rows[strict], chunk_rows[strict]
            local_shift = _densest(reference.end[reference_rows] - rows.end[chunk_rows], WIDTHS[0])
            shifts[index] = predicted if local_shift is None else local_shift
            if local_shift is not None:
                supported[index] = True
                last = index
    if not supported.any():
        return None
    if len(chunks) == 1:
        shift = np.full(len(other), shifts[0], dtype=np.int64)
    else:
        at = (other.end - other.origin).astype(np.float64)
        nodes = (center[supported] - other.origin).astype(np.float64)
        base = int(shifts[supported][0])
        shift = base + np.rint(np.interp(at, nodes, (shifts[supported] - base).astype(np.float64))).astype(np.int64)
    evidence, blur = alignment_evidence(reference, other, shift)
    for _ in range(2):
        straight = _straight(reference, other, shift, blur)
        if straight is None:
            break
        better, sharper = alignment_evidence(reference, other, straight)
        if better <= evidence:
            break
        shift, evidence, blur = straight, better, sharper
    return OffsetEstimate(shift, blur, evidence) if evidence > 0 else None


def _straight(reference: Timeline, other: Timeline, shift: Int64, blur: int) -> Int64 | None:
    """A linear fit of the shift through the pairs that agree: clocks drift steadily."""
    rows, residual = nearest_ends(reference, other, shift)
    near = np.abs(residual) <= 4 * blur
    if near.sum() < 8:
        return None
    at = (other.end - other.origin).astype(np.float64) / max(int(other.end[-1]) - other.origin, 1)
    base = int(shift[0])
    seen = (shift[rows[near]] - base + residual[near]).astype(np.float64)
    slope, level = np.polyfit(at[rows[near]], seen, 1)
    straight: Int64 = base + np.rint(level + slope * at).astype(np.int64)
    return straight


def nearest_ends(reference: Timeline, other: Timeline, shift: Int64) -> tuple[Int64, Int64]:
    """The events with a possible partner near them, and how much later the end of the nearest partner is.

    Args:
        reference: the possible partners.
        other: the events.
        shift: the offset of each end to the reference's clock, ns.

    Returns:
        indices into the other's events, ascending, and ns. Events whose ranks may end at different times count only
        if there are no others.
    """
    rows, other_rows = reference.pairs(other, other.end + shift, NEAR, same_step=False)
    strict = ~other.one_sided[other_rows]
    if strict.any():
        rows, other_rows = rows[strict], other_rows[strict]
    residual = reference.end[rows] - other.end[other_rows] - shift[other_rows]
    if not other_rows.size:
        return other_rows, residual
    # Pairs are sorted by the other's rows. The last bit holds the sign, so that the minimum keeps it.
    begins = np.flatnonzero(np.concatenate([[True], np.diff(other_rows) != 0]))
    least = np.minimum.reduceat(2 * np.abs(residual) + (residual < 0), begins)
    return other_rows[begins], np.where(least & 1, -(least >> 1), least >> 1)


def alignment_evidence(reference: Timeline, other: Timeline, shift: Int64) -> tuple[float, int]:
    """The evidence of the ends for a shift, in nats, and how well they agree (blur), ns.

    If events of one kind are a gap apart, an end that agrees within the blur is gap / 2 blur times likelier than at
    random. The blur is the one that maximizes the total evidence.
    """
    rows, nearest = nearest_ends(reference, other, shift)
    residual = np.full(len(other), 2 * NEAR, dtype=np.int64)
    residual[rows] = np.abs(nearest)
    counts = np.bincount(reference.kind, minlength=int(max(reference.kind.max(), other.kind.max())) + 1)
    span = max(int(reference.end[-1] - reference.end[0]), NEAR)
    gap = span / np.maximum(counts[other.kind], 1)
    totals = [float(np.maximum(np.log(gap / (2 * blur)) - residual / blur, 0).sum()) for blur in BLURS]
    best = int(np.argmax(totals))
    return totals[best], BLURS[best]
