"""Benchmarks of the Spark pipeline: ``python -m benchmarks.pipeline.<name>``."""
