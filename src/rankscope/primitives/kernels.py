"""The category of device events: communication, compute or memory.

A kernel is communication if it has collective metadata, or if its name matches the table below, ignoring case; else it
is compute. The host range that launched it does not decide: a collective's range also launches the copies that flatten
its tensors. Copies and fills are memory.

In: names of device events. Out: those that are communication.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

# `small_reduce` and `SmallGather` are not collectives: `all` must not be the end of `small`.
COMMUNICATION_NAMES = (
    r"nccl|rccl|oneccl|hccl|msccl|nvshmem|deep_?ep|(inter|intra)node(_ll)?::|multimem|symm_?mem"
    r"|cross_device_reduce|(?<!sm)all_?(to_?all|reduce|gather)|reduce_?scatter|send_?recv"
)

COMPUTE, COMMUNICATION, MEMORY = "compute", "communication", "memory"


def communication_names(names: Iterable[str], *, extra: str | None = None) -> set[str]:
    """The kernel names that are communication.

    Args:
        names: kernel names, best without repetition.
        extra: a further regular expression from the user, also ignoring case.
    """
    return {name for name in names if _communicates(name, extra)}


@lru_cache(maxsize=1 << 16)
def _communicates(name: str, extra: str | None) -> bool:
    # Not joined: flags or groups in the user's pattern must not affect the table.
    return any(re.search(pattern, name, re.IGNORECASE) for pattern in (COMMUNICATION_NAMES, extra) if pattern)
