"""What the ranks are compared by: their local time as a whole, parts of it, its steady part, the launched work,
and the host's own time.

In: `Observations`. Out: a list of `Measure`, each a matrix of ranks and steps with its properties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import Float

LOCAL = "local"
ALLOCATION = "allocation"  # its calls wait for the device, so most of their cost shows elsewhere


@dataclass(frozen=True)
class Measure:
    """What the ranks are compared by.

    Attributes:
        name: of a part, or how the measure was made.
        value: (ranks, steps) ns; nan where not known.
        device: whether it is time of the device.
        once: whether a single step is evidence enough, since hiccups do not show in it.
        steady: whether hiccups of single places are excluded.
        of_host: whether it is the host's own time: an excess costs the rank only what its device waits for it.
    """

    name: str
    value: Float
    device: bool = False
    once: bool = False
    steady: bool = False
    of_host: bool = False

    @property
    def quiet(self) -> bool:
        """Whether hiccups of hosts do not show in it."""
        return self.device or self.once


def measures(seen: Observations) -> list[Measure]:
    """The measures that are known of these ranks."""
    zero: Int64 = np.zeros(seen.known.shape, dtype=np.int64)
    parts: dict[str, tuple[Int64, bool, bool]] = {
        LOCAL: (seen.local, False, False),
        # `work` and `slower` say more of kernels, but need the launches. A shifted boundary moves kernels into another
        # step, so a single step of `device` is no evidence.
        "device": (seen.parts.get("compute", zero) + seen.parts.get("copies", zero), True, False),
        ALLOCATION: (seen.parts.get(ALLOCATION, zero), False, True),
        # Without it, slow loading is found by `steady` alone, whose excess differs from that of the local time.
        "data_loading": (seen.parts.get("data_loading", zero), False, False),
        "host": (seen.host, False, False),
        # A thread that spins or sleeps: in one Gloo job of two ranks, nothing else finds it.
        "nothing": (seen.parts.get("nothing", zero), False, False),
        "work": (seen.work, True, True),
        "slower": (seen.slower, True, True),
    }
    found = [
        Measure(name, np.where(seen.known, value, np.nan), of_device, once)
        for name, (value, of_device, once) in parts.items()
        if value.any()
    ]
    found.append(Measure("steady", seen.steady, steady=True))
    found.append(Measure("host_steady", seen.host_steady, steady=True, of_host=True))
    return [each for each in found if np.isfinite(each.value).any()]
