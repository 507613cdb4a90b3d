"""Whether torchrun is to start a job again whose latest attempt has failed.

Ranks note how often torchrun does so and which process is its agent. On the agent's host it is known whether that one
lives; elsewhere only time can tell. A rank does not learn with which status it exits: one that has called
``sys.exit(1)`` has finished as far as its manifest says, and only the agent knows better.

In: the logs of the latest attempt, and the states of its ranks. Out: yes or no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankscope.answers.watch.log import RankLog
from rankscope.answers.watch.state import RankState
from rankscope.rundir.processes import is_dead, is_here

ELSEWHERE_S = 600.0
"""How long the next attempt may take to log steps if the agent is on another host: new nodes may have to come."""


@dataclass(frozen=True)
class _Agent:
    host: str | None
    pid: int | None
    pid_namespace: str


def is_restarting(logs: Mapping[int, RankLog], states: Sequence[RankState]) -> bool:
    """Whether the job is to be started again.

    Args:
        logs: by rank, of the latest attempt.
        states: of its ranks.
    """
    if any(each.state in ("running", "silent") for each in states):
        return False
    headers = [log.header for log in logs.values()]
    if not any(each.max_restarts > each.restart_count for each in headers):
        return False
    agents = {_Agent(each.host, each.agent_pid, each.pid_namespace) for each in headers if each.agent_pid is not None}
    if seen := [each for each in agents if is_here(each)]:
        return not all(is_dead(each) for each in seen)
    if all(each.state == "finished" for each in states):
        return False
    return min(each.silent_s for each in states) <= ELSEWHERE_S
