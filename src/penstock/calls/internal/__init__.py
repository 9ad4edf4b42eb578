"""Connections between nodes: both ends, their certificates, calls and replies."""
