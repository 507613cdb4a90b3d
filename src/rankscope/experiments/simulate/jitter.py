"""Random durations like those of real machines: quantiles measured on real traces, and independent draws.

``MEASURED`` has, per class, quantiles of (duration / median duration of similar events), which are those with the same
name, shapes or grid, and rank; ``tests/experiments/simulate/measure_jitter.py`` prints them from any set of traces. The
lower tails of kernels are mirror images of the upper ones, because real traces have kernels of one name and grid that
do different work. Measured for comparison and not used: A100 ``nccl_parser_config`` (launch_call 0.53 to 1.32 between
the 5th and 95th percentile, host_leaf 0.91 to 1.64, kernel_long 0.89 to 1.11 and 5.2 at 99.9 %), MI300X
``ddp_resnet18_no_pool`` (kernel_long 0.90 to 1.37, 3.4 at 99.9 %), gloo (host_leaf 0.55 to 3.2, 68 at 99.9 %).

A draw is a hash of (seed, purpose, step, rank, place), turned into a factor by a table of quantiles. So a fault on one
rank, an extra kernel or another number of ranks changes no other draw, any part of the job can be drawn again at any
time, and the factors are whole numbers (65,536ths): the same seed gives the same nanoseconds on every machine.

In: keys. Out: factors.
"""

from __future__ import annotations

import functools
import math
import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I64: TypeAlias = npt.NDArray[np.int64]
U64: TypeAlias = npt.NDArray[np.uint64]
Bool: TypeAlias = npt.NDArray[np.bool_]

ONE = 65_536
"""A factor of 1: factors count 65,536ths, so that durations stay whole numbers."""

QUANTILES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)

_H100 = "modded-nanogpt-h100-8ranks"
MEASURED: dict[str, tuple[str, str, tuple[float, ...]]] = {
    # class: (source, what it is a ratio of, values at QUANTILES)
    "launch_call": (
        _H100,
        "duration of cudaLaunchKernel, cuLaunchKernel(Ex), 20,656 calls",
        (0.52, 0.525, 0.592, 0.693, 0.75, 0.863, 1.0, 1.192, 1.499, 1.791, 3.201, 12.4, 20.0),
    ),
    "host_leaf": (
        _H100,
        "duration of host operators that enclose nothing, 21,431 of them",
        (0.08, 0.087, 0.129, 0.363, 0.548, 0.793, 1.0, 1.335, 1.92, 2.664, 5.284, 11.5, 15.0),
    ),
    "kernel_long": (
        _H100,
        "compute kernels with a median above 20 µs, 9,849 of them (lower tail mirrored)",
        (0.8, 0.8, 0.87, 0.955, 0.966, 0.986, 1.0, 1.012, 1.035, 1.047, 1.149, 1.25, 1.25),
    ),
    "kernel_short": (
        _H100,
        "compute kernels with a median up to 20 µs, 10,526 of them (lower tail mirrored)",
        (0.44, 0.444, 0.613, 0.828, 0.884, 0.957, 1.0, 1.058, 1.16, 1.249, 1.741, 3.146, 4.0),
    ),
    "transfer": (
        _H100,
        "least duration over the 8 ranks of ReduceScatter f32 and AllGather of one size (relative sd 0.013 to 0.11)",
        (0.96, 0.96, 0.965, 0.975, 0.98, 0.99, 1.0, 1.01, 1.025, 1.046, 1.12, 1.4, 1.4),
    ),
    "rank_speed": (
        _H100,
        "a rank's kernels over all ranks' median, medians over kernels (a property of the device, fixed over steps)",
        (0.9993, 0.9993, 0.9993, 0.9993, 0.9994, 0.9996, 1.0, 1.0003, 1.0005, 1.0005, 1.0005, 1.0005, 1.0005),
    ),
    "end_skew": (
        _H100,
        "end on a rank minus the first rank's end of one collective, over 237 µs (their median transfer), 112 ends",
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.011, 0.0334, 0.107, 0.198, 0.245, 0.324, 0.36, 0.36),
    ),
}

SKEW_CAP_NS = 90_000
"""The largest end skew seen was 85 µs: longer collectives do not end further apart."""

LAUNCH_CALL_NS = 6_000
"""Median of cudaLaunchKernel in the H100 set (6.0 to 6.7 µs), from its start to its end."""

LAUNCH_TO_START_NS = 2_500
"""From the end of the launch call to the start on an idle stream (8.2 µs from the call's start at 1 %)."""

KERNEL_GAP_NS = 1_120
"""Between two queued kernels of one stream: at 10 % in the H100 set; 1,184 at the median of the A100 set."""


@functools.lru_cache(maxsize=64)
def table(name: str, scale: float = 1.0) -> I64:
    """4,096 equally likely factors of one class, in 65,536ths; ``scale`` widens or narrows them about the median."""
    values = np.asarray(MEASURED[name][2])
    position = (np.arange(4096) + 0.5) / 4096
    if name == "end_skew":
        factors = np.interp(position, QUANTILES, values) * scale
    else:
        factors = np.exp(np.interp(position, QUANTILES, np.log(values)) * scale)
    rounded: I64 = np.rint(factors * ONE).astype(np.int64)
    rounded.setflags(write=False)
    return rounded


def to_factor(value: float) -> int:
    """A ratio in 65,536ths."""
    return math.floor(value * ONE + 0.5)


def _mix(x: U64) -> U64:
    # The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = x ^ (x >> np.uint64(31))
    return mixed


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xD1B54A32D192ED03)


class Chance:
    """All random draws of one job, by purpose."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        self.seed = seed
        self.scale = scale

    def keys(self, purpose: str, step: int, who: npt.ArrayLike) -> U64:
        """One key for each of ``who`` (ranks, or the first ranks of groups)."""
        start = np.asarray([(self.seed * 0x9E37 + zlib.crc32(purpose.encode()) * 0x10001) % 2**64], dtype=np.uint64)
        start = _mix(_mix(start) + np.asarray([step % 2**64], dtype=np.uint64) * _OTHER)
        return _mix(start + np.atleast_1d(np.asarray(who)).astype(np.uint64) * _GOLDEN)

    @staticmethod
    def hashes(keys: U64, place: I64) -> U64:
        """64 random bits for each pair of key and place (broadcast)."""
        return _mix(keys + (place.astype(np.uint64) + np.uint64(1)) * _GOLDEN)

    def factors(self, name: str, keys: U64, place: I64) -> I64:
        """Factors of class ``name`` in 65,536ths, for each pair of key and place (broadcast)."""
        found: I64 = table(name, self.scale)[(self.hashes(keys, place) >> np.uint64(52)).astype(np.int64)]
        return found

    def uniform(self, purpose: str, who: int, place: int = 0) -> float:
        """One number in [0, 1), exact to 2⁻⁵³."""
        bits = self.hashes(self.keys(purpose, 0, who), np.asarray([place], dtype=np.int64))
        return int(bits[0] >> np.uint64(11)) / 2**53
