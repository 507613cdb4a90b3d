"""How an experiment samples: blocks of steps in random order, repeated jobs; and the description of it in results.

In: an experiment's options. Out: plans, and texts for the result.
"""

from __future__ import annotations

import datetime
import os
import random
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError
from rankscope.experiments.measure.jobs import THREADS_NOTE, Outcome, Target
from rankscope.experiments.measure.results import Setting
from rankscope.experiments.measure.stability import drift_note
from rankscope.experiments.measure.statistics import CONFIDENCE, LEAST_BLOCKS, METHOD
from rankscope.rundir.manifest import redact
from rankscope.rundir.measurement import EARLY, Plan
from rankscope.rundir.options import option


@dataclass(frozen=True)
class Sampling:
    """The options that all experiments share."""

    blocks: int = option(20, "Blocks per condition in each job.", least=1)
    block_steps: int = option(5, "Measured steps per block.", least=1)
    settle_steps: int = option(1, "Steps at the start of each block that are not measured.", "--settle", least=0)
    # Compiling, caches, DDP's rebuilding of its buckets.
    warmup_steps: int = option(8, "Steps of a job before its first block.", "--warmup", least=1)
    repeats: int = option(1, "Jobs per configuration; configurations take turns.", least=1)
    traced_steps: int = option(4, "Steps to record after the blocks; 0 for none.", "--trace-steps", least=0)
    seed: int = option(0, "Random seed for the order of blocks and jobs, and for the intervals.", least=0)
    limit_s: float | None = option(
        300.0,
        f"Seconds after which a job starts no new round of blocks, once it has at least {LEAST_BLOCKS}.",
        "--limit",
        least=1,
    )
    timeout_s: float = option(3600.0, "Seconds after which a job that is still running is ended.", "--timeout", least=1)

    def __post_init__(self) -> None:
        for name in ("blocks", "block_steps", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        if self.warmup_steps < 1 or self.settle_steps < 0 or self.traced_steps < 0:
            raise ConfigError("a job needs at least one warm-up step, and numbers of steps cannot be negative")

    def rounds(self, conditions: Sequence[str], repeat: int) -> tuple[tuple[str, ...], ...]:
        """The order of the blocks of one job: each round has every condition once, in random order."""
        rng = random.Random(f"{self.seed} {repeat}")
        return tuple(tuple(rng.sample(list(conditions), len(conditions))) for _ in range(self.blocks))

    def plan(self, folder: Path, conditions: Mapping[str, Mapping[str, Any]], repeat: int = 0, **further: Any) -> Plan:
        """The plan of a job: blocks of each condition.

        Args:
            folder: the job's directory.
            conditions: by name.
            repeat: which repetition.
            further: other fields of the plan.
        """
        return Plan(
            out=str(folder.resolve()),
            rounds=self.rounds(list(conditions), repeat),
            conditions=conditions,
            warmup=self.warmup_steps,
            settle=self.settle_steps,
            steps=self.block_steps,
            limit_s=self.limit_s,
            **further,
        )

    def job_order(self, names: Sequence[str]) -> list[tuple[int, str]]:
        """Repeat and name of each job: the names interleaved, each repeat in random order."""
        order: list[tuple[int, str]] = []
        for repeat in range(self.repeats):
            rng = random.Random(f"{self.seed} jobs {repeat}")
            order += [(repeat, name) for name in rng.sample(list(names), len(names))]
        return order


def setting_of(
    sampling: Sampling, target: Target, outcomes: Sequence[Outcome], load: float | None, notes: Sequence[str] = ()
) -> Setting:
    """The description of the measurement that every result carries.

    Args:
        sampling: blocks, repeats and limits.
        target: what was run.
        outcomes: all jobs.
        load: the machine's load average at the start.
        notes: further notes.
    """
    from rankscope import __version__

    ranks = [rank for outcome in outcomes for rank in outcome.ranks]
    first = ranks[0] if ranks else None
    all_notes = list(dict.fromkeys([*notes, *(note for rank in ranks for note in rank.notes)]))
    if first is not None and first.clock == "host":
        all_notes.append(THREADS_NOTE)
    if any(rank.ended == EARLY for rank in ranks):
        all_notes.append(
            f"the script ended before the plan was complete, after {max(rank.steps for rank in ranks)} steps: "
            "complete blocks are used; let it run more steps, or choose fewer --blocks"
        )
    fewest = min((len({b.round for b in rank.blocks}) for rank in ranks), default=0)
    if 0 < fewest < LEAST_BLOCKS and fewest * sampling.repeats < LEAST_BLOCKS:
        all_notes.append(
            f"{fewest} block{'s are' if fewest > 1 else ' is'} too few for an interval: it needs {LEAST_BLOCKS}"
        )
    cpus = os.cpu_count() or 1
    if load is not None and load > cpus / 2:
        all_notes.append(
            f"the machine was busy at the start, with a load of {load:g} on {cpus} CPU{'s' * (cpus > 1)}: times are "
            "longer, and intervals wider, than on an idle one"
        )
    drift = drift_note(ranks)
    if drift is not None:
        all_notes.append(drift)
    versions = sorted({rank.torch for rank in ranks})
    if len(versions) > 1:
        all_notes.append(f"jobs ran with different versions of torch: {', '.join(versions)}")
    return Setting(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        target=shlex.join(redact(shlex.split(target.label))),
        command=redact(sys.argv),
        seed=sampling.seed,
        confidence=CONFIDENCE,
        method=METHOD,
        warmup_steps=sampling.warmup_steps,
        settle_steps=sampling.settle_steps,
        block_steps=sampling.block_steps,
        blocks=sampling.blocks,
        repeats=sampling.repeats,
        rankscope=__version__,
        torch=first.torch if first else None,
        hosts=sorted({rank.host for rank in ranks}),
        device=first.device if first else None,
        clock=first.clock if first else None,
        load=load,
        notes=all_notes,
    )


def load_average() -> float | None:
    """The load average over one minute; None if the system does not report it."""
    ask = getattr(os, "getloadavg", None)  # not on Windows
    try:
        return round(float(ask()[0]), 2) if ask is not None else None
    except OSError:
        return None
