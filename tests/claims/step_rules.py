"""Claims about the steps as such."""

from __future__ import annotations

import re
import statistics

from tests.claims.claim import Claim
from tests.claims.raw import Raw
from tests.claims.registry import checks

OF_NAME = {
    "compute": ("compute",),
    "exposed communication": ("exposed_communication",),
    "copies": ("exposed_memcpy", "exposed_memset"),
    "waiting for data": ("data_loading",),
}
BUSY = [name for names in OF_NAME.values() for name in names]


@checks("longer_steps")
def longer_steps(claim: Claim, raw: Raw) -> None:
    """Each later step is longer than all earlier ones, and on each rank most of the difference is of one part."""
    said = re.search(r"From step (\d+) on, steps take (\d+) % longer( on all ranks)?: more (.+)", claim.finding.title)
    assert said is not None
    first, part = int(said[1]), said[4]
    job: dict[int, int] = {}
    parts: dict[tuple[int, bool], list[int]] = {}
    for rank in raw.ranks:
        for file in raw.files[rank]:
            if first not in {number for number, _, _ in file.windows}:
                continue
            for number, begin, end in file.windows:
                if number is not None:
                    job[number] = max(job.get(number, 0), end - begin)
                    time = sum(file.part(name, begin, end) for name in OF_NAME.get(part, BUSY))
                    time = end - begin - time if part == "idle time" else time
                    parts.setdefault((rank, number >= first), []).append(time)
    before = [ns for number, ns in job.items() if number < first]
    after = [ns for number, ns in job.items() if number >= first]
    claim.require(min(len(before), len(after)) >= 4, "too few steps")
    apart = statistics.median(after) - statistics.median(before)
    claim.require(min(after) - max(before) >= apart / 2, "a later step is not longer")
    claim.is_near("mean step before", statistics.fmean(before))
    claim.is_near("mean step from", statistics.fmean(after))
    longer = statistics.fmean(after) - statistics.fmean(before)
    claim.same(float(said[2]), 100 * longer / statistics.fmean(before), "the title's share", within=0.51)
    medians = {key: statistics.median(times) for key, times in parts.items()}
    for name, later in ((f"{part} before", False), (f"{part} from", True)):
        claim.is_near(name, statistics.fmean(ns for (_, is_later), ns in medians.items() if is_later is later))
    claim.require(
        all(medians[rank, True] - medians[rank, False] >= longer / 2 - 2 for rank in raw.ranks),
        "a rank on which it is less than half",
    )
    claim.is_ranks(raw.ranks)
