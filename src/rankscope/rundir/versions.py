"""Version numbers, compared as numbers, and the oldest Python and torch that capture supports.

In: a version as text. Out: its release numbers. The hook runs this file by path, on any Python from 3.8 on.
"""

from __future__ import annotations

import re

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 4)


def release(version: object) -> tuple[int, ...]:
    """A version's leading numbers, to compare: ``2.13.0+cpu`` gives (2, 13, 0); empty if there are none."""
    match = re.match(r"\d+(?:\.\d+)*", str(version))
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def is_supported_torch(version: object) -> bool:
    """Whether capture works with this torch; one whose version is not known counts as supported."""
    known = release(version)
    return len(known) < 2 or known[:2] >= OLDEST_TORCH
