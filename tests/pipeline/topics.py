"""Topics for the tests of the source and sink: made, filled and read without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.harness.decoding import decode_batches

from penstock.net.kafka_client.client import EARLIEST, LATEST, KafkaClient, KafkaRefused, Place
from penstock.record.batch import encode_batch
from penstock.record.record import Header, encode_record
from penstock.wire.kafka.generated import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
)

BASE_MS = 1_700_000_000_000
_CREATE, _DELETE, _DELETE_RECORDS, _GROW = 19, 20, 21, 37


class Topics:
    def __init__(self, kafka: str) -> None:
        self.kafka = kafka
        self.client = KafkaClient(kafka, timeout_s=20)

    def make(self, name: str, partitions: int = 1, **configs: str) -> None:
        settings = [
            create_topics.CreatableTopicConfig(key.replace("_", "."), value)
            for key, value in configs.items()
        ]
        topic = create_topics.CreatableTopic(name, partitions, 1, configs=settings)
        request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        self._check(self.client.call(_CREATE, request).topics)
        self.client.metadata([name])

    def grow(self, name: str, partitions: int) -> None:
        topic = create_partitions.CreatePartitionsTopic(name, partitions, None)
        request = create_partitions.CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
        self._check(self.client.call(_GROW, request).results)
        self.client.metadata([name])

    def delete(self, name: str) -> None:
        request = delete_topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        self._check(self.client.call(_DELETE, request, version_max=5).responses)

    def cut(self, place: Place, before: int) -> None:
        part = delete_records.DeleteRecordsPartition(place.partition, before)
        topic = delete_records.DeleteRecordsTopic(place.topic, [part])
        request = delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)
        self._check(self.client.call(_DELETE_RECORDS, request).topics[0].partitions)

    def _check(self, results: Sequence[object]) -> None:
        for each in results:
            code = each.error_code  # type: ignore[attr-defined]
            if code:
                raise KafkaRefused(code)

    def fill(
        self, name: str, counts: Mapping[int, int], *, at_ms: int = BASE_MS, prefix: str = "v"
    ) -> None:
        """So many records into each partition, a batch for every hundred."""
        for partition, count in counts.items():
            for start in range(0, count, 100):
                numbers = range(start, min(start + 100, count))
                records = [
                    encode_record(
                        offset_delta=delta,
                        timestamp_delta=delta,
                        key=f"k{number}".encode(),
                        value=f"{prefix}{partition}-{number}".encode(),
                        headers=[(b"n", str(number).encode())] if number % 2 else (),
                    )
                    for delta, number in enumerate(numbers)
                ]
                batch = encode_batch(
                    records,
                    base_offset=0,
                    leader_epoch=0,
                    base_timestamp=at_ms + start,
                    max_timestamp=at_ms + start + len(records) - 1,
                )
                self.client.produce({Place(name, partition): batch}, is_repeatable=False)

    def values(self, name: str) -> list[bytes | None]:
        """Committed ones, of all partitions in turn."""
        found: list[bytes | None] = []
        for place in self.client.places(name):
            at = self.client.offsets({place: EARLIEST})[place]
            end = self.client.offsets({place: LATEST}, is_committed=True)[place]
            while at < end:
                part = self.client.fetch({place: at}, wait_ms=0)[place]
                aborted = [(each.producer_id, each.first_offset) for each in part.aborted]
                rows = decode_batches(
                    [part.records], columns=("value", "offset"), begin=at, end=end, aborted=aborted
                )
                found += rows.column("value").to_pylist()
                at = _behind(part.records, end)
        return found


def _behind(records: memoryview, end: int) -> int:
    from penstock.pipeline.decoding.batches import whole_span

    return min(end, whole_span(records)[0])


def send(
    topics: Topics,
    topic: str,
    values: Sequence[bytes],
    *,
    at_once: int = 5,
    partition: int = 0,
    headers: Sequence[Sequence[Header]] | None = None,
    at_ms: int = 1,
) -> None:
    """Values as they are, a few in each batch, so that few bytes hold several batches."""
    for start in range(0, len(values), at_once):
        records = [
            encode_record(
                offset_delta=n,
                timestamp_delta=0,
                key=None,
                value=value,
                headers=headers[start + n] if headers is not None else (),
            )
            for n, value in enumerate(values[start : start + at_once])
        ]
        batch = encode_batch(
            records, base_offset=0, leader_epoch=0, base_timestamp=at_ms, max_timestamp=at_ms
        )
        topics.client.produce({Place(topic, partition): batch}, is_repeatable=False)


@contextmanager
def topics_of(kafka: str) -> Iterator[Topics]:
    topics = Topics(kafka)
    try:
        yield topics
    finally:
        topics.client.close()
