"""Measures Penstock against its own bars and against its peers. ``python -m benchmarks``."""
