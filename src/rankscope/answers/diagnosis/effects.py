"""Which findings are effects of which, and what part of a step each is about.

In: nothing. Out: declarations that rules and the findings of analyses refer to. `diagnosis.merging` merges a finding
with a cause declared here only if the numbers agree.

A rank that is late (`straggler`) has more of one part of its step than the other ranks: which one follows from its
cause. What another finding says of that part on that rank, beyond what it says of the other ranks, is the same time
(`same`). The other ranks wait for it in collectives: a finding about their exposed communication is its effect as far
as there is no room for both. The same holds for groups that transfer slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankscope.results import Effect, StepPart

STRAGGLER = "straggler"
STALL = "stall"
"""A straggler in one step only: about the same time as one that is late in many."""
SLOW_GROUP = "slow-network"

SLOW_DEVICE = Effect(f"{STRAGGLER}:slow_device", "the same compute takes longer on this device", same=True)
MORE_WORK = Effect(f"{STRAGGLER}:more_work", "this rank has more to compute", same=True)
RECEIVES_MORE = Effect(f"{STRAGGLER}:more_work", "this rank computes what it receives", same=True)
LATE_DATA = Effect(f"{STRAGGLER}:data_loading", "this rank is late because it waits for data", same=True)
SLOW_HOST = Effect(f"{STRAGGLER}:slow_host", "this rank's host is slow", same=True)
MEMORY_CALLS = Effect(f"{STRAGGLER}:memory", "this rank is late because it allocates or copies memory", same=True)
WAITING = Effect(STRAGGLER, "the other ranks wait in communication for this rank")
SLOW_TRANSFERS = Effect(SLOW_GROUP, "this group's transfers take longer")
SLOW_LINKS = Effect("slow_network", "these transfers take longer")
BUCKETS = Effect("bucket_size", "these buckets are the exposed communication")
SMALL_SYNCS = Effect("small_collectives", "these collectives are the exposed communication")
LATE_AFTER_WAITS = Effect("synchronizing_calls", "the host launches late because it waited for the device", same=True)
SILENT_AFTER_WAITS = Effect("synchronizing_calls", "the host had waited until the device ran out of work", same=True)
LOADING = Effect("data_loading", "the device is idle while the host loads data")


@dataclass(frozen=True)
class Declared:
    """What is known of a kind of finding.

    Attributes:
        parts: of a step that its saving is taken from; empty: not known.
        symptom_of: causes that it can be a symptom of.
    """

    parts: tuple[StepPart, ...] = ()
    symptom_of: tuple[Effect, ...] = ()


OF_ANALYSES: Mapping[str, Declared] = {
    "mesh-imbalance": Declared(
        ("compute",), (SLOW_DEVICE, MORE_WORK, Effect("imbalance", "the same compute, by mesh position", same=True))
    ),
    "pipeline-bubble": Declared(("communication",), (WAITING, SLOW_TRANSFERS)),
    SLOW_GROUP: Declared(("communication",)),
}
"""By id: the findings that analyses state themselves. Those of rules are declared in the rule."""
