"""Formats of data files beyond JSON Lines and Parquet, one a file."""
