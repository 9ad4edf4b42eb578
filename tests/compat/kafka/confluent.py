"""confluent-kafka (librdkafka) in the few forms that the tests need: producers that fail loudly,
consumers that are read until what was expected is there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import confluent_kafka.admin
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

SECONDS_MAX = 30.0

# NewTopic, ConfigResource and their like: the package does not declare what it exports.
kinds: Any = confluent_kafka.admin


class Sent(Exception):
    """A delivery report that says no."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(str(error))
        self.error = error


def producer(bootstrap: str, **settings: object) -> Any:
    """Settings as librdkafka names them, with ``_`` for ``.``."""
    return Producer(_settings(bootstrap, {"linger_ms": 5, **settings}))


def send(
    made: Any,
    topic: str,
    values: Iterable[bytes | None],
    *,
    key: bytes | None = None,
    partition: int = -1,
    headers: list[tuple[str, bytes | None]] | None = None,
    timestamp_ms: int = 0,
) -> list[Any]:
    """Every value acknowledged, or the first refusal raised."""
    done: list[Any] = []
    errors: list[KafkaError] = []

    def report(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            errors.append(error)
        else:
            done.append(message)

    for value in values:
        extra: dict[str, Any] = {"headers": headers} if headers is not None else {}
        if timestamp_ms:
            extra["timestamp"] = timestamp_ms
        made.produce(topic, value, key, partition, on_delivery=report, **extra)
    left = made.flush(SECONDS_MAX)
    assert left == 0, f"{left} messages without an answer"
    if errors:
        raise Sent(errors[0])
    return done


def _settings(bootstrap: str, settings: Mapping[str, object]) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }


@contextmanager
def consumer(bootstrap: str, group: str, **settings: object) -> Iterator[Any]:
    given = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
    made = Consumer(_settings(bootstrap, {"group_id": group, **given}))
    try:
        yield made
    finally:
        made.close()


def read(made: Any, count: int, *, seconds: float = SECONDS_MAX) -> list[Any]:
    """Exactly ``count`` messages; fewer in the time given is a failure that says how many."""
    messages: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        message = made.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
        assert time.monotonic() < deadline, f"{len(messages)} of {count} in {seconds} s"
    return messages


def read_all(bootstrap: str, topic: str, partitions: int = 1, **settings: object) -> list[Any]:
    """Everything from the beginning to where each partition ends now, without a group's help."""
    messages: list[Any] = []
    with consumer(bootstrap, "reader", enable_partition_eof=True, **settings) as made:
        made.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
        )
        ended: set[int] = set()
        deadline = time.monotonic() + SECONDS_MAX
        while len(ended) < partitions:
            message = made.poll(0.2)
            assert time.monotonic() < deadline, f"only {ended} of {partitions} ended"
            if message is None:
                continue
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise AssertionError(error)
    return messages
