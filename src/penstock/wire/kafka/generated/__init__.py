"""Codecs written by tools/kafka_codec.py, one module per API; see there."""
