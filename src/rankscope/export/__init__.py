"""Results for other tools: JSON, CSV, Parquet."""
