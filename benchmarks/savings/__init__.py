"""What following a rule's advice gains, and what the finding promised.

Each case (`benchmarks.savings.cases`) is executed twice by an exact model of a job: as it is, and with the advice
followed. The saving of the finding must be an upper bound of the gain, and never exceed the step.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import rankscope
from benchmarks.savings.cases import CASES, QUIET, Case
from benchmarks.savings.model import execute
from benchmarks.savings.real import main as real_jobs

STEPS = 6


@dataclass(frozen=True)
class Outcome:
    """A case's outcome.

    Attributes:
        case: the case.
        from_start_ns: by how much the mean step is shorter with the advice followed, the first steps included.
        step_ns: mean step of the job as it is, after its first steps.
        gain_ns: by how much it is shorter with the advice followed.
        saving_ns: the finding's; None without the finding.
    """

    case: Case
    from_start_ns: int
    step_ns: int
    gain_ns: int
    saving_ns: int | None

    @property
    def ratio(self) -> float | None:
        """The saving by the gain; None where either is missing."""
        return self.saving_ns / self.gain_ns if self.saving_ns is not None and self.gain_ns > 0 else None


def measured(case: Case, folder: Path) -> Outcome:
    """Execute a case both ways and diagnose the first."""
    before, after = (execute(program, ranks=case.ranks, steps=STEPS) for program in (case.before, case.after))
    # What further steps cost: at the start of a job there is nothing to hide behind.
    longer, shorter = (execute(program, ranks=case.ranks, steps=2 * STEPS).end for program in (case.before, case.after))
    run = rankscope.open(before.write(folder, **case.metadata), executor="serial")
    savings = [each.saving_ns for each in run.diagnosis().stated if each.id == case.rule]
    step = (longer - before.end) / STEPS
    gain = step - (shorter - after.end) / STEPS
    from_start = round(1000 * (before.end - after.end) / STEPS)
    return Outcome(case, from_start, round(1000 * step), round(1000 * gain), savings[0] if savings else None)


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    print("| finding | what was changed | step, ms | gain, ms | saving, ms | saving / gain |")
    print("|---|---|---|---|---|---|")
    for case in (*CASES, *QUIET):
        with tempfile.TemporaryDirectory() as folder:
            found = measured(case, Path(folder))
        saving = "no finding" if found.saving_ns is None else f"{found.saving_ns / 1e6:.3f}"
        ratio = "" if found.ratio is None else f"{found.ratio:.2f}"
        times = f"{found.step_ns / 1e6:.3f} | {found.gain_ns / 1e6:.3f}"
        print(f"| {case.rule} | {case.change} | {times} | {saving} | {ratio} |")
    print()
    real_jobs()
