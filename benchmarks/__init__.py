"""Benchmarks: ratios to other tools or earlier code, measured within one run.

In: the names of benchmarks (`python -m benchmarks [NAME …]`). Out: Markdown tables; their results are in README.md.
"""
