"""Column arithmetic that analyses share: intervals, nesting, steps, kernel categories, matching, statistics.

Pure functions: no files, no state, and no knowledge of how tables are stored.

In: columns of a rank's tables as Polars frames or numpy arrays. Out: columns, frames or small dataclasses.
"""
