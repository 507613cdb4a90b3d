"""Table schemas and Parquet; the only place that touches either."""
