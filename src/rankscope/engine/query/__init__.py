"""SQL over a run: the tables of all ranks, and the results of analyses.

DuckDB parses a query, which says what it names (`statement.py`), and runs it over the run's Parquet files and results
alone (`engine.py`, `tables.py`); values are made fit for files and the page (`values.py`). `examples.py` has queries to
start from.

In: SQL, the cached tables of each rank, and results. Out: a frame, or an error that names near tables and columns.
"""
