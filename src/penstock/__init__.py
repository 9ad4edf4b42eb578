"""Penstock: one log, seen as queues, topics, pushes and DataFrames."""

__version__ = "0.2.0"
