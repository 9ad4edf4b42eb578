"""Connections between nodes: the calling side, the listening side, and the code that both use."""
