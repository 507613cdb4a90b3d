"""Measure the jitter of real traces: what `rankscope.experiments.simulate.jitter` holds as constants.

Run by hand, with folders or files of Kineto traces (.json, .json.gz) as arguments; each argument is one set, whose
files are its ranks. Prints, per set and class, the quantiles of (duration / median of its like), where "like" means
the same name, the same shapes or grid, and the same rank; and for collectives how far the ends of one collective lie
apart over the ranks once each rank's median offset is taken out.
"""

from __future__ import annotations

import collections
import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

QUANTILES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
AT_LEAST = 8  # of a kind, so that their median means something

Event = dict[str, Any]


def load(path: Path) -> list[Event]:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    trace = json.loads(data, strict=False)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    return [e for e in events if e.get("ph") == "X"]


def ratios(groups: Iterable[list[float]]) -> npt.NDArray[np.float64]:
    kept = [np.asarray(g) / np.median(g) for g in groups if len(g) >= AT_LEAST and np.median(g) > 0]
    return np.concatenate(kept) if kept else np.empty(0)


def leaves(events: list[Event]) -> list[Event]:
    """Host operators that enclose no other recorded host event: their duration is their own."""
    threads: dict[object, list[Event]] = collections.defaultdict(list)
    for e in events:
        if e.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "Runtime"):
            threads[e["pid"], e["tid"]].append(e)
    found = []
    for thread in threads.values():
        thread.sort(key=lambda e: (e["ts"], -e["dur"]))
        for one, following in zip(thread, [*thread[1:], None], strict=True):
            inside = following is not None and following["ts"] < one["ts"] + one["dur"]
            if not inside and one.get("cat") in ("cpu_op", "Operator"):
                found.append(one)
    return found


def like(e: Event) -> tuple[str, str]:
    args = e.get("args", {})
    return e["name"], str(args.get("Input Dims", args.get("Input dims", args.get("grid"))))


def is_communication(e: Event) -> bool:
    return "nccl" in e["name"].lower()


def classes(ranks: list[list[Event]]) -> dict[str, npt.NDArray[np.float64]]:
    groups: dict[str, dict[object, list[float]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for rank, events in enumerate(ranks):
        for e in events:
            if e.get("cat") in ("kernel", "Kernel") and not is_communication(e):
                groups["kernel"][rank, like(e)].append(e["dur"])
            elif "LaunchKernel" in e["name"]:
                groups["launch_call"][rank, e["name"]].append(e["dur"])
        for e in leaves(events):
            groups["host_leaf"][rank, like(e)].append(e["dur"])
    kernels = groups.pop("kernel", {})
    found = {name: ratios(each.values()) for name, each in groups.items()}
    found["kernel_long"] = ratios(g for g in kernels.values() if np.median(g) > 20)
    found["kernel_short"] = ratios(g for g in kernels.values() if np.median(g) <= 20)
    return found


def collective_ends(ranks: list[list[Event]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(|end - the ranks' median end|, ratio of transfer to its like's median), of collectives without rivals near."""
    lists = [
        sorted(
            (e["ts"] + e["dur"], e["dur"], e["name"])
            for e in events
            if e.get("cat") == "kernel" and is_communication(e)
        )
        for events in ranks
    ]
    if len(lists) < 3 or not all(lists):
        return np.empty(0), np.empty(0)
    ends, transfers = [], collections.defaultdict(list)
    for end, duration, name in lists[0]:
        row, durations = [end], [duration]
        for other in lists[1:]:
            near = sorted((abs(x[0] - end), x) for x in other if x[2] == name)[:2]
            if not near or near[0][0] > 60 or (len(near) > 1 and near[1][0] < 400):
                break
            row.append(near[0][1][0])
            durations.append(near[0][1][1])
        if len(row) == len(lists):
            ends.append(row)
            transfers[name].append(min(durations))
    if not ends:
        return np.empty(0), np.empty(0)
    e = np.asarray(ends)
    e = e - e[:, :1]
    e = e - np.median(e, axis=0)
    return (e - e.min(axis=1, keepdims=True)).ravel(), ratios(transfers.values())


def main(arguments: list[str]) -> None:
    for argument in arguments:
        path = Path(argument)
        files = sorted(p for p in ([path] if path.is_file() else path.iterdir()) if ".json" in p.name)
        ranks = [load(p) for p in files]
        print(f"{path.name}: {len(files)} rank(s)")
        for name, values in classes(ranks).items():
            if len(values):
                print(f"  {name:13} n={len(values):6}", np.round(np.quantile(values, QUANTILES), 3).tolist())
        skews, transfers = collective_ends(ranks)
        if len(skews):
            print(f"  {'end_skew_us':13} n={len(skews):6}", np.round(np.quantile(skews, QUANTILES), 2).tolist())
        if len(transfers):
            print(f"  {'transfer':13} n={len(transfers):6}", np.round(np.quantile(transfers, QUANTILES), 3).tolist())


if __name__ == "__main__":
    main(sys.argv[1:])
