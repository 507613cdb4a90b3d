"""The identity of a simulated rank: its host, process, threads, device and process groups, and the id of its run.

In: a job and a rank. Out: its identity.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from rankscope.experiments.simulate.job import Job, as_dict
from rankscope.experiments.simulate.mesh import Group, MeshLayout

MAIN, AUTOGRAD = "main", "autograd"

TRUNCATED_RANKS = 30
"""torch lists at most this many ranks of a group on its events."""


def run_id(job: Job) -> str:
    """The id that all files of a run share: the same for the same job."""
    text = json.dumps(as_dict(job), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest().upper()


def host_of(job: Job, rank: int) -> str:
    """The host that a rank runs on."""
    return f"node{rank // job.gpus_per_host:04d}"


@dataclass(frozen=True)
class RankIdentity:
    """The names and numbers in a rank's file that are the same in all its events."""

    rank: int
    host: str
    pid: int
    device: int
    groups: dict[str, Group]
    """By mesh dimension, ``world`` among them."""

    @classmethod
    def of(cls, job: Job, layout: MeshLayout, rank: int) -> RankIdentity:
        """The identity of a rank of a job."""
        node, device = divmod(rank, job.gpus_per_host)
        groups = layout.groups_of(rank, shared_names=job.recording.group_names == "shared")
        return cls(rank, host_of(job, rank), 2_000 + 97 * device + 7 * node % 1_000, device, groups)

    def thread(self, name: str) -> int:
        """The id of the main thread or of autograd's."""
        return self.pid if name == MAIN else self.pid + 80

    def index_in(self, dim: str) -> int:
        """The rank's index in its group along ``dim``."""
        return self.groups[dim].ranks.index(self.rank)

    def stride_in(self, dim: str) -> int:
        """The distance between neighbors in the group along ``dim``."""
        ranks = self.groups[dim].ranks
        return ranks[1] - ranks[0] if len(ranks) > 1 else 1

    def neighbor(self, step: int) -> int:
        """The index of the pipeline stage that is ``step`` stages away, in a ring."""
        return (self.index_in("pp") + step) % len(self.groups["pp"].ranks)

    def ranks_text(self, dim: str) -> str:
        """A group's ranks as torch writes them on an event."""
        ranks = self.groups[dim].ranks
        return f"[{', '.join(map(str, ranks[:TRUNCATED_RANKS]))}{', ...' if len(ranks) > TRUNCATED_RANKS else ''}]"
