"""The questions of ``python -m benchmarks.kafka_answers``, and the comparison of the answers."""
