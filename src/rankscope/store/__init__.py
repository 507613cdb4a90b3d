"""Keeps the tables of traces on disk.

In: rows from `ingest`, in slices. Out: columns as Polars frames, from a cache keyed by the file's content, so that a
trace is read once; the schema of all tables; small files next to the tables for what was computed from them.
"""
