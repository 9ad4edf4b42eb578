"""Topics over the Kafka protocol, for every system that speaks it."""

import confluent_kafka

from benchmarks.kafka.drivers import librdkafka
from benchmarks.kafka.job import Driver
from benchmarks.scenarios import LoadFailed
from benchmarks.server import Server


class KafkaTopics:
    raw_driver = Driver.FRAMES
    is_kafka = True

    def create(self, server: Server, topic: str, partitions: int, *, readers: int) -> None:  # noqa: ARG002
        try:
            librdkafka.create_topic(
                server.host, server.port, topic, partitions=partitions, config={}
            )
        except confluent_kafka.KafkaException as error:
            raise LoadFailed(f"cannot create a topic: {error}") from error

    def delete(self, server: Server, topic: str, partitions: int) -> None:  # noqa: ARG002
        try:
            librdkafka.delete_topic(server.host, server.port, topic)
        except confluent_kafka.KafkaException as error:
            raise LoadFailed(f"cannot delete a topic: {error}") from error
