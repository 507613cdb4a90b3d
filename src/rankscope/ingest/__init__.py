"""Reads traces of torch.profiler into tables.

In: files, directories and URLs, damaged or not. Out: Parquet tables in the cache, one set per trace; the rank and run
of each trace; findings about what was lost, inferred or left out.
"""
