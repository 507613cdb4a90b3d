"""The same promise in real jobs of two ranks with gloo: their gain is measured in turns and without recording."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.answers.diagnosis.rules.test_real_causes import findings, gained, run_cases

CASES = (
    ("data_loading", "a loader that is always ready", "loader", "loader-fixed"),
    ("small_collectives", "only the last", "sync", "sync-fixed"),
    ("straggler", "the late rank's extra work dropped", "uneven", "uneven-dropped"),
    ("imbalance", "its work shared", "uneven", "uneven-shared"),
    ("gc_pauses", "gc.freeze()", "gc", "gc-fixed"),
    ("small_kernels", "fewer operators", "tiny", "tiny-fixed"),
    ("bucket_size", "the default bucket size", "bucket", "bucket-fixed"),
)
"""Finding, what was changed, the case of tests/answers/diagnosis/rules/real_job.py, and the same with the advice
followed."""


def main() -> None:
    """Run the job and print the table. On a machine that others use, gains differ from one measurement to the next."""
    print("| finding | what was changed | gain, ms | saving, ms |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        runs = run_cases(Path(folder))
        for rule, change, case, fixed in CASES:
            least, most = (gain / 1e6 for gain in gained(runs, case, fixed))
            gain = f"{least:.1f}" if most - least < 0.1 else f"{least:.1f} to {most:.1f}"
            saving = next((each.saving_ns for each in findings(runs / case) if each.id == rule), None)
            print(f"| {rule} | {change} | {gain} | {'no finding' if saving is None else f'{saving / 1e6:.1f}'} |")
