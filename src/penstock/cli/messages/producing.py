"""Producing to a topic: input is batched by partition and sent as it arrives.

A producer id is requested first, and every batch has a sequence number: a batch that is sent again
because a reply was lost is stored once. Batches are small, so that an error concerns few records; a
larger record goes alone. Ctrl-C waits for the reply to what was read, and the user learns how many
records the server has accepted."""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.cli.clients.kafka import Place, failing, failure_of, refused
from penstock.cli.command import Session
from penstock.cli.messages.record_lines import OutgoingRecord, RecordDefaults, from_json, from_text
from penstock.cli.messages.sending import Lines, Sender
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.net.kafka_client.client import KafkaRefused, KafkaTrouble
from penstock.record.batch import NO_PRODUCER, encode_batch
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.produce import ProducePartitionResponse

_BATCH_BYTES_MAX = 262_144
_BATCH_RECORDS_MAX = 1_000
_SEQUENCES = 2**31
_PAUSE_S, _PAUSE_S_MAX = 0.1, 2.0
_PASSING = (ExitCode.UNREACHABLE, ExitCode.TIMEOUT)  # errors worth a retry


def send_records(
    session: Session,
    topic: str,
    source: Iterable[Lines],
    defaults: RecordDefaults,
    *,
    is_ndjson: bool,
    is_single: bool,
) -> None:
    sender = RecordSender(session, topic)
    sender.run(_records(source, defaults, is_ndjson=is_ndjson), sender.send)
    item = None
    if is_single and sender.last is not None:
        item = {"topic": topic, "partition": sender.last[0], "offset": sender.last[1]}
    sender.end(item, "offset" if item else "sent")


def _records(
    source: Iterable[Lines], defaults: RecordDefaults, *, is_ndjson: bool
) -> Iterator[Sequence[OutgoingRecord]]:
    make = from_json if is_ndjson else from_text
    for chunk in source:
        made: list[OutgoingRecord] = []
        try:
            for place, line in chunk:
                made.append(make(place, line, defaults))
        except Failure:
            if made:  # records before the bad line are still sent
                yield made
            raise
        yield made


class _Batch(NamedTuple):
    data: bytes
    records: Sequence[OutgoingRecord]


class RecordSender(Sender):
    def __init__(self, session: Session, topic: str) -> None:
        super().__init__(session, "record", topic)
        self._kafka = session.kafka
        self._topic = topic
        self._what = f"cannot send to topic '{topic}'"
        self._partition_count = len(self._kafka.places(topic, what=self._what))
        # Records without a key go to one partition for a while, as in Kafka's producers.
        self._turn = secrets.randbelow(self._partition_count)
        self._producer_id, self._producer_epoch = self._new_producer_id()
        self._sequences: dict[int, int] = {}
        self.last: tuple[int, int] | None = None  # partition and offset of the last accepted record

    def _new_producer_id(self) -> tuple[int, int]:
        try:
            return self._kafka.client.producer_id()
        except KafkaRefused:
            return NO_PRODUCER, -1  # no producer ids on this server: delivery is at least once
        except KafkaTrouble as trouble:
            raise failure_of(trouble, self._what) from trouble

    # ── Batches ──────────────────────────────────────────────────────────────────────────────

    def send(self, chunk: Sequence[OutgoingRecord]) -> None:
        waiting: dict[int, list[OutgoingRecord]] = {}
        for record in chunk:
            partition = self._partition_of(record)
            if partition is not None:
                waiting.setdefault(partition, []).append(record)
        self._turn = (self._turn + 1) % self._partition_count
        while waiting:
            # One batch per partition at a time keeps the order of the input in each partition.
            batches = {number: self._cut(number, records) for number, records in waiting.items()}
            self._produce(batches)
            for number, batch in batches.items():
                del waiting[number][: len(batch.records)]
            waiting = {number: records for number, records in waiting.items() if records}

    def _partition_of(self, record: OutgoingRecord) -> int | None:
        if record.partition is not None:
            if 0 <= record.partition < self._partition_count:
                return record.partition
            self.reject(record.place, f"partition {record.partition} does not exist")
            return None
        if record.key is None:
            return self._turn
        return partition_of_key(record.key, self._partition_count)

    def _cut(self, partition: int, records: Sequence[OutgoingRecord]) -> _Batch:
        encoded: list[bytes] = []
        size = 0
        for record in records[:_BATCH_RECORDS_MAX]:
            data = record.encoded(len(encoded))
            size += len(data)
            if encoded and size > _BATCH_BYTES_MAX:
                break
            encoded.append(data)
        now_ms = int(time.time() * 1_000)
        is_known = self._producer_id != NO_PRODUCER
        data = encode_batch(
            encoded,
            base_offset=0,
            leader_epoch=-1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequences.get(partition, 0) if is_known else -1,
        )
        return _Batch(data, records[: len(encoded)])

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    def _produce(self, batches: Mapping[int, _Batch]) -> None:
        """Retry until each batch is accepted or rejected for good, or until the timeout."""
        left = dict(batches)
        give_up_at = time.monotonic() + self._session.settings.timeout_s
        pause_s = _PAUSE_S
        while True:
            trouble = self._try(left)
            if not left:
                return
            assert trouble is not None
            if time.monotonic() + pause_s > give_up_at:
                raise trouble
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _try(self, left: dict[int, _Batch]) -> Failure | None:
        """Try once; remove finished batches from ``left`` and return why the rest is not done."""
        trouble: Failure | None = None
        try:
            for part in self._request(left):
                batch = left[part.index]
                code = part.error_code
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._accept(part.index, part.base_offset, batch)
                    del left[part.index]
                    continue
                failure = refused(self._what, code, part.error_message)
                if failure.exit_code in _PASSING:
                    trouble = failure
                    continue
                if failure.exit_code is ExitCode.DENIED:
                    raise failure  # all other records would be denied as well
                for record in batch.records:
                    self.reject(record.place, failure.why)
                del left[part.index]
            if trouble is not None:
                self._kafka.metadata([self._topic])  # the leader may have changed
        except Failure as failure:
            # The reply is lost, but the batch may be stored: only a numbered batch is sent again.
            if failure.exit_code not in _PASSING or self._producer_id == NO_PRODUCER:
                raise
            trouble = failure
        return trouble

    def _request(self, batches: Mapping[int, _Batch]) -> list[ProducePartitionResponse]:
        data = {Place(self._topic, number): batch.data for number, batch in batches.items()}
        with failing(self._what):
            return list(self._kafka.client.try_produce(data).values())

    def _accept(self, partition: int, base_offset: int, batch: _Batch) -> None:
        count = len(batch.records)
        self._sequences[partition] = (self._sequences.get(partition, 0) + count) % _SEQUENCES
        self.accepted += count
        self.last = (partition, base_offset + count - 1 if base_offset >= 0 else -1)


# ── The partition of a key ───────────────────────────────────────────────────────────────────
# As Kafka's own producers choose it, so that a record goes to the partition of the other records of
# its key: murmur2 of the key's bytes with Kafka's seed, its sign bit cleared, modulo the number of
# partitions.

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_WORD = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF


def murmur2(data: bytes) -> int:
    size = len(data)
    whole = size & ~3
    state = _SEED ^ size
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        state = state * _MIX & _WORD ^ word
    if whole < size:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MIX & _WORD
    state = (state ^ state >> 13) * _MIX & _WORD
    return state ^ state >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(data=key) & _POSITIVE) % partition_count
