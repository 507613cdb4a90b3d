"""Dumps of the Flight Recorder as torch writes them, built in code: a job of a few ranks, and what each called."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

WORLD = "0"


class Recorder:
    """The Flight Recorder of one rank with NCCL.

    Args:
        rank: global.
        groups: the global ranks of each group that the rank is in, by its name.
    """

    def __init__(self, rank: int, groups: Mapping[str, Sequence[int]]) -> None:
        self.rank = rank
        self.groups = {name: list(ranks) for name, ranks in groups.items() if rank in ranks}
        self.entries: list[dict] = []
        self.counts = dict.fromkeys(self.groups, 0)
        self.done = dict.fromkeys(self.groups, 0)

    def call(self, operation, group=WORLD, *, elements=4, dtype="Float", done=True, p2p=False, at=None, line=10):
        """Record a call: a collective, or "send 0->1" with ``p2p``."""
        self.counts[group] += not p2p
        if done:
            self.done[group] = self.counts[group]
        record = len(self.entries)
        self.entries.append(
            {
                "record_id": record,
                "pg_id": sorted(self.groups, key=int).index(group),
                "process_group": (group, "default_pg" if group == WORLD else f"group_{group}"),
                "collective_seq_id": self.counts[group],
                "p2p_seq_id": record if p2p else 0,
                "op_id": record,
                "profiling_name": f"nccl:{operation}",
                "time_created_ns": 10**18 + (record if at is None else at) * 10**9,
                "input_sizes": [[elements]],
                "output_sizes": [[elements]],
                "input_dtypes": [dtype],
                "output_dtypes": [dtype],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": 10**18 if done else None,
                "retired": done,
                "timeout_ms": 600_000,
                "is_p2p": p2p,
                "frames": [{"name": operation, "filename": "/site-packages/torch/distributed/x.py", "line": 1},
                           {"name": "train", "filename": "/job/train.py", "line": line}],
            }
        )  # fmt: skip
        return self

    def dump(self, *, only_active: bool = False) -> dict:
        """As torch has it."""
        names = sorted(self.groups, key=int)
        return {
            "version": "2.10",
            "pg_config": {n: {"name": n, "desc": f"group_{n}", "ranks": str(self.groups[n])} for n in names},
            "pg_status": {
                str(index): {
                    "last_enqueued_collective": self.counts[name],
                    "last_started_collective": -1,
                    "last_completed_collective": self.done[name],
                }
                for index, name in enumerate(names)
            },
            "nccl_version": "2.27.3",
            "entries": [e for e in self.entries if not (only_active and e["state"] == "completed")],
        }

    def write(self, folder: Path, name: str | None = None, *, as_json: bool = False, only_active: bool = False) -> Path:
        """Write it; as a pickle, as torch does on a timeout, or as JSON."""
        path = folder / (name or f"nccl_trace_rank_{self.rank}")
        dump = self.dump(only_active=only_active)
        path.write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2))
        return path


def recorders(size: int, groups: Mapping[str, Sequence[int]] | None = None) -> list[Recorder]:
    """One for each rank of a job; the default group has all ranks."""
    every = {WORLD: range(size), **(groups or {})}
    return [Recorder(rank, every) for rank in range(size)]
