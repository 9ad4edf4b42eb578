"""How fast records go in and out through the Kafka view, beside what a disk and a socket allow."""
