"""Random collectives of random jobs, with the truth of which rows belong together and how the clocks differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.communicators import COLUMNS
from rankscope.primitives.matching import Matching

SCHEMA = {name: pl.Int64() for name in COLUMNS} | dict.fromkeys(
    ("group", "group_ranks", "collective", "name", "dtype", "source"), pl.String()
)


@dataclass(frozen=True)
class Made:
    """Rows with a column ``truth``: which collective each is."""

    rows: pl.DataFrame
    offset: dict[int, int]
    drift: dict[int, float]
    began: float

    def true_time(self, rank: int, clock: np.ndarray) -> np.ndarray:
        """The first rank's clock at a rank's times."""
        return (clock - self.offset[rank] + self.drift[rank] * self.began) / (1 + self.drift[rank])


def random_job(
    seed: int,
    *,
    ranks: int | None = None,
    steps: int | None = None,
    layers: int | None = None,
    known_steps: bool = False,
    known_sequence: bool = False,
    lost: float | None = None,
    cut: bool = True,
    jitter: float | None = None,
    step_jitter: float | None = None,
    group: str = "0 default_pg",
    first_rank: int = 0,
) -> Made:
    """Layers that repeat in steps that repeat: ends agree to 1–31 µs, clocks differ by µs to an hour and to 100 ppm."""
    random = np.random.default_rng(seed)
    ranks = ranks or int(random.integers(2, 17))
    steps = steps or int(random.integers(2, 9))
    layers = layers or int(random.integers(1, 13))
    jitter = 10 ** random.uniform(-2.3, -0.5) if jitter is None else jitter
    step_jitter = 10 ** random.uniform(3.5, 6.5) if step_jitter is None else step_jitter
    noise = 10 ** random.uniform(3, 4.5)
    lost = float(random.choice([0, 0.002, 0.02])) if lost is None else lost
    pattern = [(kind, 1000 * (1 + bool(layer))) for layer in range(layers) for kind in ("all_gather", "reduce_scatter")]
    pattern.append(("all_reduce", 64))
    if random.random() < 0.5:
        pattern.append(("broadcast", 7))
    gaps = 10 ** random.uniform(5, 7.3, size=len(pattern))
    spaces = gaps * (1 + jitter * random.standard_normal((steps, len(pattern)))) ** 2 + 5e4
    spaces[1:, 0] += np.abs(random.standard_normal(steps - 1)) * step_jitter
    true = np.cumsum(spaces.ravel())
    count, span = true.size, true[-1] - true[0]
    kinds = [kind for _ in range(steps) for kind, _ in pattern]
    sizes = [size for _ in range(steps) for _, size in pattern]
    members = list(range(first_rank, first_rank + ranks))
    made, offsets, drifts = [], {}, {}
    for rank in members:
        first = rank == first_rank
        offsets[rank] = 0 if first else int(random.choice([-1, 1]) * 10 ** random.uniform(3, 12.6))
        drifts[rank] = 0.0 if first else random.uniform(-100, 100) * 1e-6
        end = true + random.laplace(0, noise / 1.5, size=count)
        root = np.array([kind == "broadcast" for kind in kinds])
        end[root] -= (random.random(root.sum()) < 0.5) * random.exponential(2e5, root.sum())
        for index in range(1, count):  # a stream runs one after another
            end[index] = max(end[index], end[index - 1] + 1.5e4)
        keep = random.random(count) >= lost
        if cut:
            keep &= true >= true[0] + random.uniform(0, 0.3) * span * (random.random() < 0.7)
            keep &= true <= true[-1] - random.uniform(0, 0.3) * span * (random.random() < 0.7)
        ends = np.rint(end + offsets[rank] + drifts[rank] * (end - true[0])).astype(np.int64)
        length = np.minimum(random.integers(10_000, 40_000, count), np.diff(ends, prepend=ends[0] - 10**6) - 1000)
        for index in np.flatnonzero(keep):
            made.append(
                {
                    "rank": rank, "group": group, "group_ranks": str(members), "group_size": ranks, "stream": 7 + rank,
                    "collective": kinds[index], "dtype": "Float",
                    "in_elements": sizes[index], "out_elements": sizes[index],
                    "step": index // len(pattern) if known_steps else None,
                    "recorded": int(index) + 7 if known_sequence else None,
                    "start_ns": ends[index] - length[index], "end_ns": ends[index], "truth": int(index),
                }
            )  # fmt: skip
    return Made(frame(made), offsets, drifts, float(true[0]))


THREADS = 2
"""Of Gloo: so many collectives of a group run at the same time."""


def gloo_job(
    seed: int, *, ranks: int = 2, steps: int = 6, buckets: int = 6, seen: float = 1e6, known_steps: bool = True,
    sizes: bool = False, cut: bool = False,
) -> Made:  # fmt: skip
    """All-reduces of one group on Gloo's threads: each takes the next of its rank's queue when it has done its own.

    Args:
        seed: of the job.
        ranks: their number.
        steps: of each rank.
        buckets: all-reduces of a step.
        seen: how long after the end of a transfer a busy rank notices it, in the mean, ns.
        known_steps: whether the step of each is known.
        sizes: whether their sizes are recorded; all are of one size otherwise.
        cut: whether each rank misses some at either end of its recording.
    """
    random = np.random.default_rng(seed)
    count = steps * buckets
    size = np.tile(random.choice([1000, 2000, 4000], buckets), steps)
    free = np.zeros((ranks, THREADS))
    clock, starts, ends = np.zeros(ranks), np.empty((count, ranks)), np.empty((count, ranks))
    for index in range(count):
        clock += random.uniform(5e5, 3e6, ranks)
        if index % buckets == 0:  # a rank goes on with the next step when all of its gradients are there
            clock = np.maximum(clock, free.max(axis=1)) + random.uniform(5e6, 2e7)
        thread = free.argmin(axis=1)
        starts[index] = np.maximum(clock, free[np.arange(ranks), thread])
        # It may begin some time after a thread is free, but not before the one that was launched earlier.
        starts[index] = np.maximum(
            starts[index] + random.exponential(5e4, ranks), starts[index - 1] + 1e3 if index else 0.0
        )
        done = starts[index].max() + random.uniform(5e5, 8e6)
        ends[index] = done + random.exponential(seen, ranks)
        free[np.arange(ranks), thread] = ends[index]
    first, last = ((random.integers(0, 4, ranks) if cut else np.zeros(ranks, dtype=int)) for _ in range(2))
    rows = [
        {
            "rank": rank, "group": "0", "group_ranks": str(list(range(ranks))), "group_size": ranks,
            "stream": int(index % THREADS), "collective": "all_reduce", "source": "gloo",
            **({"dtype": "Float", "in_elements": int(size[index])} if sizes else {}),
            "step": index // buckets if known_steps else None, "truth": index,
            "start_ns": round(starts[index, rank]), "end_ns": round(ends[index, rank]),
        }
        for rank in range(ranks) for index in range(first[rank], count - last[rank])
    ]  # fmt: skip
    return Made(frame(rows), dict.fromkeys(range(ranks), 0), dict.fromkeys(range(ranks), 0.0), 0.0)


@dataclass(frozen=True)
class Planted:
    """All-reduces of ranks on hosts whose clocks differ by a known offset; rows are sorted by collective."""

    hosts: dict[int, str | None]
    rank: np.ndarray
    match: np.ndarray
    start: np.ndarray
    end: np.ndarray
    offset: np.ndarray


def planted_offsets(
    seed: int, *, hosts: int, per_host: int, offset: int, busy: tuple[int, ...] = (), late: int | None = None
) -> Planted:
    """A rank arrives within some milliseconds of the others, or 40 ms later (`late`), and sees an end within 0.2 ms, or
    on busy hosts, in four of five cases, 8 ms later in the mean."""
    random = np.random.default_rng(seed)
    count = int(random.choice([8, 16, 64]))
    host = np.repeat(np.arange(hosts), per_host)
    planted = np.where(host % 2 == 1, offset, np.where(host > 0, -offset, 0))
    time, starts, ends = 0.0, [], []
    for _ in range(count):
        arrival = time + random.exponential(3e6, host.size)
        if late is not None:
            arrival[late] += 4e7
        done = arrival.max() + random.choice([2e5, 8e5, 4e6])
        seen = random.exponential(5e4, host.size)
        seen += np.isin(host, busy) * (random.random(host.size) < 0.8) * random.exponential(8e6, host.size)
        starts.append(arrival)
        ends.append(done + seen)
        time = (done + seen).max() + 1e7
    ticks = [np.rint(np.concatenate(each)).astype(np.int64) + 10**18 for each in (starts, ends)]
    moved = np.tile(planted, count)
    rank = np.tile(np.arange(host.size), count)
    match = np.repeat(np.arange(count), host.size)
    names: dict[int, str | None] = {each: f"host{host[each]}" for each in range(host.size)}
    return Planted(names, rank, match, ticks[0] + moved, ticks[1] + moved, planted)


def frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    """Rows as `match_collectives` takes them, with their truth."""
    return pl.DataFrame(rows, schema={**SCHEMA, "truth": pl.Int64()}, strict=False)


def faults(rows: pl.DataFrame, found: Matching) -> tuple[int, int]:
    """Rows matched to another collective's, and rows without a partner that have one."""
    seen = rows.with_columns(pl.Series("match", found.match)).with_columns(
        pl.col("rank").n_unique().over("truth").alias("ranks"), pl.col("truth").n_unique().over("match").alias("mixed")
    )
    wrong = seen.filter((pl.col("match") >= 0) & (pl.col("mixed") > 1)).height
    return wrong, seen.filter((pl.col("match") < 0) & (pl.col("ranks") > 1)).height
