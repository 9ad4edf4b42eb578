"""Connections between nodes: the calling side, the listening side, and what both share."""
