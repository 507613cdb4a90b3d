"""`python -m benchmarks.diagnosis simulated --seeds 0:100`: one part, with its options."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.diagnosis import show
from benchmarks.diagnosis.simulated import run_seeds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("simulated",))
    parser.add_argument("--seeds", default="1000:1400")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    first, _, last = given.seeds.partition(":")
    cases = sorted(run_seeds(range(int(first), int(last)), given.keep, given.workers), key=lambda case: case.name)
    show("simulated", cases)
    print(f"\nCPU {sum(case.seconds for case in cases):.0f} s")


if __name__ == "__main__":
    main()
