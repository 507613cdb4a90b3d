"""The state of a watched job as plain JSON, for scripts: `rankscope watch RUN --format json`.

In: a `WatchStatus`. Out: what `json.dumps` takes.
"""

from __future__ import annotations

from rankscope.answers.watch.state import WatchStatus

SCHEMA_VERSION = 1


def as_json(status: WatchStatus) -> dict[str, object]:
    """A status as plain JSON."""
    step_time = status.step_time
    change = step_time.change if step_time is not None else None
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": status.run_id,
        "world_size": status.world_size,
        "attempts": status.attempts,
        "running": status.running,
        "restarting": status.restarting,
        "ranks": [vars(each) for each in status.ranks],
        "step_time": None
        if step_time is None
        else {
            "steps": step_time.steps,
            "median_ns": step_time.median_ns,
            "most_ns": step_time.most_ns,
            "change": None
            if change is None
            else {
                "step": step_time.changed_at,
                "before_ns": round(change.before),
                "after_ns": round(change.after),
                "significance": change.verdict.significance.value,
            },
        },
        "rank_times": [vars(each) for each in status.rank_times],
        "stragglers": [
            {
                "rank": each.rank,
                "excess_ns": each.found.excess_ns,
                "saving_ns": each.found.saving_ns,
                "lasting": each.found.lasting,
                "once": each.found.once,
                "cause": each.found.cause.cause,
                "phase": each.phase,
                "phase_ns": each.phase_ns,
                "since_step": each.since_step,
                "significance": each.found.verdict.significance.value,
            }
            for each in status.late_ranks
        ],
        "verdicts": {str(rank): verdict.significance.value for rank, verdict in status.verdicts.items()},
        "least_delay_ns": status.least_delay_ns,
        "unknown": status.unknown or None,
        "last_arrivals": [vars(each) for each in status.last_arrivals],
        "long_steps": [vars(each) for each in status.long_steps],
        "notes": list(status.notes),
        "warnings": list(status.warnings),
    }
