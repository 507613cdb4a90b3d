"""Reads traces of torch.profiler into tables.

In: files, directories and URLs, damaged or not. Out: Parquet tables in the cache, one set for each trace, which rank and
which run each trace is of, and findings about what was lost, guessed or left out.
"""
