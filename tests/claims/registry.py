"""Which check recomputes which finding: by the finding's id."""

from __future__ import annotations

from collections.abc import Callable

from tests.claims.claim import Claim
from tests.claims.raw import Raw

Check = Callable[[Claim, Raw], None]
CHECKS: dict[str, Check] = {}


def checks(*ids: str) -> Callable[[Check], Check]:
    """Registers a check for findings of these ids."""

    def register(check: Check) -> Check:
        for each in ids:
            assert each not in CHECKS, f"{each} has two checks"
            CHECKS[each] = check
        return check

    return register
