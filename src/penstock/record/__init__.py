"""Kafka's record batch v2: the same bytes on disk, between nodes and to Kafka clients."""
