"""What a device event is for: communication, compute or memory.

A kernel is communication if it carries collective metadata itself, or if its name matches, case aside, the table
below; else it is compute. The host range that launched it does not decide: a collective's range also launches the
copies that flatten its tensors. Copies and fills are memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

COMMUNICATION_NAMES = (
    r"nccl|rccl|oneccl|hccl|msccl|nvshmem|deep_?ep|(inter|intra)node(_ll)?::|multimem|symm_?mem"
    r"|cross_device_reduce|all_?to_?all|all_?reduce|all_?gather|reduce_?scatter|send_?recv"
)

COMPUTE, COMMUNICATION, MEMORY = "compute", "communication", "memory"


def communication_names(names: Iterable[str], *, extra: str | None = None) -> set[str]:
    """Those of the kernel names that are communication.

    Args:
        names: kernel names, best without repetition.
        extra: a regular expression of the user's own, or-ed to the table.
    """
    pattern = COMMUNICATION_NAMES if not extra else f"{COMMUNICATION_NAMES}|{extra}"
    search = re.compile(pattern, re.IGNORECASE).search
    return {name for name in names if search(name)}
