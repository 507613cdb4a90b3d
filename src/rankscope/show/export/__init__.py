"""Writes results for other tools.

In: results of analyses, or a diff. Out: JSON, CSV or Parquet, as bytes.
"""
