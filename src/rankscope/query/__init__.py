"""SQL over a run: the tables of all ranks, and the results of analyses.

A query is checked (`statement.py`), run by Polars or DuckDB over the tables on disk (`tables.py`, `engines.py`), in a
process of its own if its time is limited (`process.py`), and its values are made fit for files and the page
(`values.py`). `examples.py` has queries to start from.

In: SQL, the cached tables of each rank, and results. Out: a frame, or an error that names near tables and columns.
"""
