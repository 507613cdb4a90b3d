"""Medians of step times and their uncertainty.

A time is the median over steps of the slowest rank. Consecutive steps are correlated (other programs on the machine, a
clock that slows down), so the interval does not treat them as independent: it resamples whole blocks, and if a job was
repeated, jobs first and blocks within them (a percentile bootstrap of clusters: B. Efron and
R. Tibshirani, An Introduction to the Bootstrap, 1993, chapters 8 and 13). Conditions that were measured in one job are
resampled together, round by round, so that disturbances of both cancel in their difference.

Percentiles of a bootstrap are too narrow if there is little to resample, or if consecutive blocks are similar. So they
are widened: by Student's quantile over the normal one and the root of n / (n - 1) (T. Hesterberg, What Teachers Should
Know About the Bootstrap, The American Statistician 69, 2015, section 4), and by the root of (1 + r) / (1 - r), where r
is the correlation of a round with the one before it (the variance of a mean of an autoregressive series). The degrees
of freedom of Student's quantile are those of blocks, those of jobs, or in between, depending on which causes the
variance (F. Satterthwaite, An Approximate Distribution of Estimates of Variance Components, Biometrics Bulletin 2,
1946): three jobs that differ predict a fourth badly.

In: step times by job and block (`Series`), ns. Out: medians, differences and ratios with their 99 % intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from rankscope.experiments.measure.results import Share, Time
from rankscope.primitives.statistics import Verdict, student_quantile, verdict_of_interval

Float = npt.NDArray[np.float64]
CONFIDENCE = 0.99
"""A second measurement, as noisy as the first, falls into a 99 % interval in 93 % of cases, into a 95 % one in 83."""
REPLICATES = 2000
LEAST_BLOCKS = 5
"""Below this number of blocks there is no interval."""

METHOD = (
    "median over steps of the slowest rank; percentile bootstrap over blocks of consecutive steps, and over jobs where "
    "they were repeated, widened for few blocks, for few jobs that differ and for rounds that are alike; conditions of "
    f"one job resampled together; {REPLICATES} replicates"
)
_LEAST_ROUNDS = 10
"""Below this number of rounds the correlation of a round with the one before is mostly noise."""
_MAX_CORRELATION = 0.8


@dataclass(frozen=True)
class Series:
    """Times of one condition.

    Args:
        jobs: for each job an array of (rounds, ranks, steps), in nanoseconds.
        looks: after how many jobs the measurement may stop because the interval is narrow enough. Such an interval is
            narrow by chance more often than one of a fixed number of jobs. So each of them is made with a confidence of
            1 - 0.01 / looks: all of them together hold with 99 % (C. Bonferroni's inequality), whichever is the last.
    """

    jobs: tuple[Float, ...]
    looks: int = 1

    @property
    def confidence(self) -> float:
        """The confidence of the interval after each of these jobs."""
        return 1 - (1 - CONFIDENCE) / self.looks

    @property
    def blocks(self) -> int:
        """The total number of blocks."""
        return sum(len(job) for job in self.jobs)

    def by_rank(self) -> Float:
        """Each rank's median over all steps."""
        medians: Float = np.median(np.concatenate([_flat(job) for job in self.jobs], axis=1), axis=1)
        return medians

    def median(self) -> float:
        """The median of the slowest rank."""
        return float(self.by_rank().max())

    def rounds(self) -> tuple[Float, ...]:
        """For each job the medians of the slowest rank's blocks."""
        slowest = int(self.by_rank().argmax())
        return tuple(np.median(job[:, slowest], axis=1) for job in self.jobs)

    def quartiles(self) -> tuple[float, float]:
        """The quartiles of the slowest rank's steps."""
        steps = np.concatenate([_flat(job) for job in self.jobs], axis=1)[int(self.by_rank().argmax())]
        low, high = np.quantile(steps, [0.25, 0.75])
        return float(low), float(high)


def replicates(series: Mapping[str, Series], seed: int, salt: int = 0, count: int = REPLICATES) -> dict[str, Float]:
    """Medians of resampled blocks, ``count`` of each series; empty if there are too few blocks.

    Args:
        series: conditions that were measured in the same jobs, with the same rounds.
        seed: for the choice of jobs. The same seed and number of jobs give the same choice, so that repetitions that
            were interleaved are resampled together.
        salt: for the choice of rounds, in addition to the seed.
        count: how many.
    """
    first = next(iter(series.values()), None)
    if first is None or first.blocks < LEAST_BLOCKS:
        return {name: np.empty(0) for name in series}
    jobs = len(first.jobs)
    chosen = np.random.default_rng(seed).integers(jobs, size=(count, jobs))
    rng = np.random.default_rng([seed, 1 + salt])
    rounds = [[rng.integers(len(first.jobs[j]), size=len(first.jobs[j])) for j in row] for row in chosen]
    drawn = {}
    for name, one in series.items():
        medians = np.empty(count)
        for index in range(count):
            picked = [_flat(one.jobs[j][which]) for j, which in zip(chosen[index], rounds[index], strict=True)]
            medians[index] = np.median(np.concatenate(picked, axis=1), axis=1).max()
        drawn[name] = medians
    return drawn


def widening(series: Series, other: Series | None = None) -> float:
    """The factor by which percentiles of replicates are widened: at least 1.

    Args:
        series: what was resampled.
        other: what was resampled with it, for their difference or ratio: disturbances of both then cancel.
    """
    jobs, blocks = len(series.jobs), series.blocks
    if blocks < LEAST_BLOCKS:
        return 1.0
    units = jobs if jobs > 1 else blocks
    outside = (1 - CONFIDENCE) / 2
    rounds = list(series.rounds())
    if other is not None:
        # A disturbed round is slower by the same factor in both.
        level = series.median() / other.median() if other.median() > 0 else 1.0
        rounds = [a - level * b for a, b in zip(rounds, other.rounds(), strict=True)]
    factor = stretch(correlation(rounds))
    student = student_quantile(_freedom(rounds, factor), series.confidence) / -NormalDist().inv_cdf(outside)
    return math.sqrt(units / (units - 1)) * student * factor


def _freedom(jobs: Sequence[Float], factor: float) -> float:
    """Degrees of freedom of an interval: those of blocks if jobs differ by no more than their blocks explain, those of
    jobs if they differ by much more, and in between by how much each adds to the variance.

    Args:
        jobs: the rounds of each job.
        factor: how much the correlation of rounds adds to the uncertainty of a job's median.
    """
    blocks = sum(len(job) for job in jobs)
    if len(jobs) < 2:
        return blocks - 1
    share = _between(jobs, factor)
    return 1 / (share**2 / (len(jobs) - 1) + (1 - share) ** 2 / max(1, blocks - len(jobs)))


def between_jobs(series: Series) -> float:
    """The share of the variance of jobs' medians that their rounds do not explain: 0 for one job, or for equal jobs."""
    rounds = series.rounds()
    return _between(rounds, stretch(correlation(rounds)))


def _between(jobs: Sequence[Float], factor: float) -> float:
    if len(jobs) < 2:
        return 0.0
    between = float(np.var([np.median(job) for job in jobs], ddof=1))
    # For normal values, the variance of a median is pi / 2 times that of a mean.
    within = [math.pi / 2 * float(np.var(job, ddof=1)) / len(job) * factor**2 for job in jobs if len(job) > 1]
    if not within or between == 0:
        return float(between > 0)
    return max(0.0, 1 - math.fsum(within) / len(within) / between)


def stretch(correlated: float) -> float:
    """The factor on the width of an interval for the correlation of a round with the one before."""
    return math.sqrt((1 + correlated) / (1 - correlated))


def time_of(series: Series, resampled: Float) -> Time:
    """A median with its interval and spread."""
    low, high = _bounds(resampled, series.median(), widening(series))
    p25, p75 = series.quartiles()
    return Time(
        median_ns=round(series.median()),
        # Times are not below 0, except for the rest of a step, which is a difference.
        low_ns=None if low is None else max(min(0, round(series.median())), round(low)),
        high_ns=None if high is None else round(high),
        p25_ns=round(p25),
        p75_ns=round(p75),
        samples=sum(job.shape[0] * job.shape[2] for job in series.jobs),
        blocks=series.blocks,
    )


def difference_of(a: Series, b: Series, resampled_a: Float, resampled_b: Float) -> Time:
    """a - b for conditions that were resampled together."""
    low, high = _bounds(resampled_a - resampled_b, a.median() - b.median(), widening(a, b))
    return Time(
        median_ns=round(a.median() - b.median()),
        low_ns=None if low is None else round(low),
        high_ns=None if high is None else round(high),
        samples=sum(job.shape[0] * job.shape[2] for job in a.jobs),
        blocks=a.blocks,
    )


def ratio_of(value: float, resampled: Float, widened: float = 1.0) -> Share:
    """A ratio of times, such as a speed-up, with the interval of its replicates.

    The interval is widened on the logarithm of the ratio: half as fast is as far from 1 as twice as fast, and no ratio
    of times is below 0, however noisy they are.

    Args:
        value: the ratio.
        resampled: its replicates.
        widened: the factor of :func:`widening`.
    """
    if value <= 0 or (len(resampled) and float(resampled.min()) <= 0):  # a time of 0 has no logarithm
        low, high = _bounds(resampled, value, widened)
        return Share(float(value), None if low is None else max(0.0, low), high)
    low, high = _bounds(np.log(resampled), math.log(value), widened)
    return Share(float(value), None if low is None else math.exp(low), None if high is None else math.exp(high))


def affine(share: Share, factor: float, offset: float) -> Share:
    """``factor * share + offset`` with its interval: a speed-up over n is an efficiency, 1 minus that an overhead."""
    ends = [None if end is None else factor * end + offset for end in (share.low, share.high)]
    low, high = ends if factor >= 0 else ends[::-1]
    return Share(factor * share.value + offset, low, high)


def difference_from(a: Time, b: Time) -> Time:
    """a - b for times of which only the intervals are known, and which were not resampled together.

    Each end of the interval combines the distances of the matching ends of both intervals, as independent (G. Zou and
    A. Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27, 2008).
    """
    value = a.median_ns - b.median_ns
    low = high = None
    if a.low_ns is not None and a.high_ns is not None and b.low_ns is not None and b.high_ns is not None:
        low = round(value - math.hypot(a.median_ns - a.low_ns, b.high_ns - b.median_ns))
        high = round(value + math.hypot(a.high_ns - a.median_ns, b.median_ns - b.low_ns))
    return Time(value, low, high, samples=min(a.samples, b.samples), blocks=min(a.blocks, b.blocks))


def beyond_chance(share: Share) -> bool | None:
    """Whether the interval excludes 0; None without an interval."""
    return verdict_of(share, 0, CONFIDENCE).significant


def verdict_of(share: Share, blocks: int, confidence: float) -> Verdict:
    """The verdict on a difference, which follows from its interval: significant if it excludes 0.

    Args:
        share: the difference as a ratio, with its interval.
        blocks: the number of blocks of steps that the interval resampled.
        confidence: of the interval.
    """
    return verdict_of_interval(
        share.low, share.high, blocks, "block", test=f"{100 * confidence:g} % bootstrap interval"
    )


def simple_time(values: Sequence[int]) -> Time | None:
    """The median of single measurements, with its interval by order statistics: the ranks between which the median lies
    are binomial, whatever the distribution (H. A. David and H. N. Nagaraja, Order Statistics, 2003, section 7.1)."""
    if not values:
        return None
    ordered = sorted(values)
    n = len(ordered)
    low, high = _median_ranks(n)
    return Time(
        median_ns=round(float(np.median(ordered))),
        low_ns=None if low is None else ordered[low],
        high_ns=None if high is None else ordered[high],
        p25_ns=round(float(np.quantile(ordered, 0.25))),
        p75_ns=round(float(np.quantile(ordered, 0.75))),
        samples=n,
        blocks=n,
    )


def _median_ranks(n: int) -> tuple[int | None, int | None]:
    """The indices, from 0, of the order statistics that hold the median between them with the confidence."""
    tail, total, weight = 0.0, (1 - CONFIDENCE) / 2, 0.5**n if n < 1000 else 0.0
    if weight == 0.0:
        half = 2.576 * n**0.5 / 2
        return max(0, int(n / 2 - half)), min(n - 1, int(n / 2 + half))
    for k in range(n):
        tail += weight
        if tail > total:
            return (None, None) if k == 0 else (k - 1, n - k)
        weight = weight * (n - k) / (k + 1)
    return None, None


def _bounds(resampled: Float, value: float, widened: float) -> tuple[float | None, float | None]:
    if len(resampled) == 0:
        return None, None
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [outside, 1 - outside])
    # All resampled medians may be on one side of the median: the interval still contains it.
    return value + widened * min(0.0, float(low) - value), value + widened * max(0.0, float(high) - value)


def correlation(jobs: Sequence[Float]) -> float:
    """The correlation of a round with the one before, over jobs: 0 if there are too few rounds.

    Corrected for the bias of short series (M. Kendall, Note on bias in the estimation of autocorrelation, Biometrika
    41, 1954).
    """
    weighted, weight = 0.0, 0
    for job in jobs:
        n, deviation = len(job), job - job.mean()
        total = float(deviation @ deviation)
        if n >= _LEAST_ROUNDS and total > 0:
            weighted += n * (n * float(deviation[1:] @ deviation[:-1]) / total + 1) / (n - 3)
            weight += n
    return min(_MAX_CORRELATION, max(0.0, weighted / weight)) if weight else 0.0


def _flat(job: Float) -> Float:
    """(rounds, ranks, steps) as (ranks, rounds x steps)."""
    flat: Float = job.transpose(1, 0, 2).reshape(job.shape[1], -1)
    return flat
