"""A message queue: one log that is used as SQS queues, Kafka topics, HTTP pushes and DataFrames."""

__version__ = "0.2.0"
