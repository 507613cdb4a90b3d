"""`python -m benchmarks.diagnosis simulated --seeds 0:100`: one part, with its options."""

from __future__ import annotations

from benchmarks.diagnosis import main

if __name__ == "__main__":
    main(None)
