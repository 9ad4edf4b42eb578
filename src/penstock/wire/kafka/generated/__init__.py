"""Message classes written by tools/kafka_messages.py, one module per API; see there."""
