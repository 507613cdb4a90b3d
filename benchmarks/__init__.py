"""Ratios against other tools, in one run. `python -m benchmarks` lists them; benchmarks/README.md has the results."""
