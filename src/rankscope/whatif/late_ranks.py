"""What late ranks cost: the gain of each in the replay, in the order of what is still gained.

A late rank costs something only if the step is shorter without its delay. If another rank is as late, neither gains
anything alone: then they are fixed together, and each names the others.

In: a run that can be replayed, and late ranks as scenarios. Out: a `Saving` for each that costs something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.whatif.gains import Waterfall
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.scenarios import AsPeers


@dataclass(frozen=True)
class Saving:
    """What late ranks cost; ns per step.

    Attributes:
        ns: by how much the step is shorter without their delay, given the more costly ones before; 0: not alone.
        together_with: ranks that are as late: only without their delay, too, something is gained.
        together_ns: so much.
    """

    ns: float
    together_with: tuple[int, ...] = ()
    together_ns: float = 0.0


def savings(run: ReplayedRun, late: Sequence[AsPeers]) -> list[Saving | None]:
    """What each costs; None for one without which the step is no shorter.

    Args:
        run: the run.
        late: scenarios of which it can tell what they gain.
    """
    (base,) = run.mean_steps([[]])
    fall = Waterfall(run, base)
    fall.add(late, most=len(late))
    alone = {gain.scenario: gain.gain_ns or 0.0 for gain in fall.gains}
    fall.add(fall.together(late), most=1)
    joint = fall.gains[-1] if len(fall.gains) > len(alone) else None
    together = set(joint.scenario.ranks) if joint is not None and isinstance(joint.scenario, AsPeers) else set[int]()

    def saving(each: AsPeers) -> Saving | None:
        if each in alone:
            return Saving(alone[each])
        if joint is None or not together.issuperset(each.ranks):
            return None
        return Saving(0.0, tuple(sorted(together - set(each.ranks))), joint.gain_ns or 0.0)

    return [saving(each) for each in late]
