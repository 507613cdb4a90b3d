"""Reads traces of torch.profiler into tables.

In: files, directories and URLs, damaged or not. Out: Parquet tables in the cache, one set per trace; which rank and run
each trace is of; findings about what was lost, guessed or left out.
"""
