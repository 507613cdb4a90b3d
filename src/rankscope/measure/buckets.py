"""How a wrapper is best set: DDP's buckets and switches, FSDP's resharding and prefetching, one factor at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError, LaunchError, RankscopeError
from rankscope.measure.files import save
from rankscope.measure.jobs import THREADS_NOTE, Outcome, Start, Target, Told, begun, run, silent
from rankscope.measure.results import Buckets, Traced, Variant
from rankscope.measure.sampling import Sampling, load_average, repeated, setting_of
from rankscope.measure.traced import read_traced
from rankscope.measure.variants import compare_conditions, compare_jobs, recommend
from rankscope.rundir.measurement import Plan

BASE = "as the script is"
_NONE: dict[str, dict[str, Any]] = {BASE: {"kind": "none"}}
Settings = dict[str, Any]

_FSDP1: dict[str, Settings] = {
    "forward_prefetch": {"forward_prefetch": True},
    "backward_prefetch BACKWARD_POST": {"backward_prefetch": "BACKWARD_POST"},
    "limit_all_gathers off": {"limit_all_gathers": False},
    "no reshard after forward": {"sharding_strategy": "SHARD_GRAD_OP"},
}
_FSDP2: dict[str, Settings] = {
    "reshard after forward": {"kind": "reshard", "after_forward": True},
    "no reshard after forward": {"kind": "reshard", "after_forward": False},
    "prefetch 1 in forward": {"kind": "prefetch", "forward": 1},
    "prefetch 2 in forward": {"kind": "prefetch", "forward": 2},
    "prefetch 2 in backward": {"kind": "prefetch", "backward": 2},
}


@dataclass(frozen=True)
class Factors:
    """What is tried of DDP."""

    bucket_cap_mb: tuple[float, ...] = (1, 5, 25, 50, 100)
    """Limits of a bucket in MiB, as DDP's argument has them."""
    first_bucket_mb: tuple[float, ...] = ()
    """Limits of the bucket that is reduced first, with DDP's own limit for the others."""
    switches: tuple[str, ...] = ("gradient_as_bucket_view", "static_graph")

    def __post_init__(self) -> None:
        if any(size <= 0 for size in (*self.bucket_cap_mb, *self.first_bucket_mb)):
            raise ConfigError("a bucket holds more than 0 MiB", hint="--bucket-cap-mb 1,5,25")

    def variants(self) -> dict[str, Settings]:
        """Arguments of DDP by name."""
        found: dict[str, Settings] = {}
        for size in self.bucket_cap_mb:
            found[f"bucket_cap_mb {size:g}"] = {"bucket_cap_mb": int(size) if float(size).is_integer() else size}
        for size in self.first_bucket_mb:
            # DDP's own limit for the first bucket holds where no bucket_cap_mb is given.
            found[f"first bucket {size:g} MiB"] = {"first_bucket_mb": size, "bucket_cap_mb": None}
        for switch in self.switches:
            found[switch] = {switch: True}
        return found


def measure_buckets(
    target: Target,
    out: Path,
    start: Start,
    factors: Factors = Factors(),  # frozen
    sampling: Sampling = Sampling(blocks=8, repeats=3),  # noqa: B008  # frozen
    told: Told = silent,
) -> Buckets:
    """Measure it, and write ``buckets.json`` and the jobs' folders into ``out``.

    Raises:
        LaunchError: the script as it is fails, or wraps nothing.
    """
    load = load_average()
    first = _run(target, start, sampling, out / "jobs" / "base-0", {}, 0, begun(told, BASE, 0, 0))
    wrapper = first.ranks[0].wrapper
    if wrapper is None:
        raise LaunchError(
            "no DistributedDataParallel, FullyShardedDataParallel or fully_shard module was found", path=first.folder
        )
    if wrapper == "fsdp2":
        result = _in_one_job(target, out, start, sampling, told, load, wrapper)
    else:
        variants = factors.variants() if wrapper == "ddp" else _FSDP1
        result = _in_jobs(target, out, start, sampling, told, load, wrapper, variants, first)
    save(result, out)
    return result


def _run(
    target: Target, start: Start, sampling: Sampling, folder: Path, wrapper: Settings, repeat: int, within: Any
) -> Outcome:
    traced = sampling.traced_steps if repeat == 0 else 0
    plan = sampling.plan(folder, _NONE, repeat, traced_steps=traced, wrapper=wrapper)
    return run(target, start, plan, timeout_s=sampling.timeout_s, within=within)


def _in_jobs(
    target: Target,
    out: Path,
    start: Start,
    sampling: Sampling,
    told: Told,
    load: float | None,
    wrapper: str,
    variants: Mapping[str, Settings],
    first: Outcome,
) -> Buckets:
    every: dict[str, Settings] = {BASE: {}, **variants}
    jobs: dict[str, list[Outcome]] = {name: [] for name in every}
    errors: dict[str, str] = {}
    order = sampling.job_order(list(every))
    for number, (repeat, name) in enumerate(order):
        if name in errors:
            continue
        if (repeat, name) == (0, BASE):
            jobs[name].append(first)
            continue
        within = begun(told, f"{name}, repeat {repeat + 1}", number, len(order))
        place = list(every).index(name)
        try:
            folder = out / "jobs" / f"{'base' if name == BASE else f'variant{place}'}-{repeat}"
            jobs[name].append(_run(target, start, sampling, folder, every[name], repeat, within))
        except RankscopeError as error:
            errors[name], jobs[name] = str(error), []
    told("", len(order), len(order), "")
    compared = compare_jobs(jobs, BASE, BASE, sampling.seed)
    found = []
    for name, settings in every.items():
        traced: Traced | None = None
        if jobs[name] and sampling.traced_steps:
            traced, _ = read_traced(jobs[name][0].folder, out)
        each = compared.get(name)
        found.append(
            Variant(
                name=name,
                settings={key: value for key, value in settings.items() if value is not None},
                base=name == BASE,
                state="failed" if each is None else "done",
                error=errors.get(name),
                step=each.step if each else None,
                difference=each.difference if each else None,
                beyond_chance=each.beyond_chance if each else None,
                bucket_bytes=list(jobs[name][0].ranks[0].buckets) if jobs[name] and wrapper == "ddp" else None,
                traced=traced,
            )
        )
    how = {name: ", ".join(f"{k}={v}" for k, v in each.items() if v is not None) for name, each in variants.items()}
    return Buckets(
        setting=setting_of(sampling, target, sys.argv, _ranks(jobs.values()), load, _notes(first)),
        wrapper=wrapper,
        world_size=first.ranks[0].world_size,
        variants=found,
        recommendation=recommend(compared, BASE, how),
    )


def _in_one_job(
    target: Target, out: Path, start: Start, sampling: Sampling, told: Told, load: float | None, wrapper: str
) -> Buckets:
    """FSDP2 can be set while the job runs: all variants are conditions of the same jobs."""
    conditions = {**_NONE, **_FSDP2}
    # What was gathered ahead in the other way is used up by then.
    sampling = replace(sampling, settle_steps=max(2, sampling.settle_steps))

    def plan(repeat: int) -> Plan:
        return sampling.plan(out / "jobs" / f"all-{repeat}", conditions, repeat)

    outcomes = repeated(target, start, sampling, told, "all variants, repeat", plan)
    compared = compare_conditions(outcomes, list(conditions), BASE, sampling.seed)
    traced = read_traced(out / "jobs" / "base-0", out)[0] if sampling.traced_steps else None
    found = [
        Variant(
            name=name,
            settings={key: value for key, value in conditions[name].items() if key != "kind"},
            base=name == BASE,
            state="done",
            step=each.step,
            difference=each.difference,
            beyond_chance=each.beyond_chance,
            traced=traced if name == BASE else None,
        )
        for name, each in compared.items()
    ]
    how = {
        "reshard after forward": "reshard_after_forward=True",
        "no reshard after forward": "reshard_after_forward=False (a rank then holds all parameters until the backward)",
        "prefetch 1 in forward": "set_modules_to_forward_prefetch with the next module",
        "prefetch 2 in forward": "set_modules_to_forward_prefetch with the next two modules",
        "prefetch 2 in backward": "set_modules_to_backward_prefetch with the next two modules",
    }
    return Buckets(
        setting=setting_of(sampling, target, sys.argv, _ranks([outcomes]), load, _notes(outcomes[0])),
        wrapper=wrapper,
        world_size=outcomes[0].ranks[0].world_size,
        variants=found,
        recommendation=recommend(compared, BASE, how),
    )


def _notes(outcome: Outcome) -> list[str]:
    return [THREADS_NOTE] if outcome.ranks[0].clock == "host" else []


def _ranks(jobs: Any) -> Sequence[Any]:
    return [each for outcomes in jobs for outcome in outcomes for each in outcome.ranks]
