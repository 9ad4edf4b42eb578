"""Producing to a topic: input is batched by partition and sent as it arrives.

A producer id is asked for first, and every batch has its sequence number: a batch that is sent
again because an answer got lost is stored once. A batch stays small, so that a refusal hits what
deserves it; what is larger than that goes alone. Ctrl-C waits until what was read has been
answered, and the user learns how many records the server has accepted.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.interrupts import Interrupts
from penstock.cli.kafka_client import Place, refused
from penstock.cli.key_partition import partition_of_key
from penstock.cli.progress import Progress
from penstock.cli.record_lines import OutgoingRecord, RecordDefaults, from_json, from_text
from penstock.cli.sending import line_chunks
from penstock.cli.session import Session
from penstock.record.batch import NO_PRODUCER, encode_batch
from penstock.wire.kafka.faults import ErrorCode

_PRODUCE, _INIT_PRODUCER_ID = 0, 22
_BY_NAME_MAX = 12  # newer requests name topics by id
_ACKS_ALL = -1
_BATCH_BYTES_MAX = 262_144
_BATCH_RECORDS_MAX = 1_000
_SEQUENCES = 2**31
_PAUSE_S, _PAUSE_S_MAX = 0.1, 2.0
_FAILURES_LISTED_MAX = 20
_PASSING = (ExitCode.UNREACHABLE, ExitCode.TIMEOUT)  # may be otherwise in a moment


def records_in(
    bodies: Sequence[str], stream: IO[bytes] | None, defaults: RecordDefaults, *, is_ndjson: bool
) -> Iterator[Sequence[OutgoingRecord]]:
    """From arguments, or from a stream in the pieces in which it arrives."""
    make = from_json if is_ndjson else from_text
    chunks: Iterable[Sequence[tuple[int, str]]] = [list(enumerate(bodies, 1))]
    if stream is not None:
        chunks = line_chunks(stream)
    for chunk in chunks:
        made: list[OutgoingRecord] = []
        try:
            for place, line in chunk:
                made.append(make(place, line, defaults))
        except Failure:
            if made:  # what came before the bad line still goes
                yield made
            raise
        yield made


class _Batch(NamedTuple):
    data: bytes
    records: Sequence[OutgoingRecord]


class RecordSender:
    def __init__(self, session: Session, topic: str) -> None:
        self._session = session
        self._kafka = session.kafka
        self._topic = topic
        self._what = f"cannot send to topic '{topic}'"
        self._partition_count = len(self._kafka.places(topic, what=self._what))
        # Records without a key go to one partition for a while, as Kafka's producers have it.
        self._turn = secrets.randbelow(self._partition_count)
        self._producer_id, self._producer_epoch = self._ask_producer_id()
        self._sequences: dict[int, int] = {}
        self.accepted = 0
        self.failed = 0
        self.last: tuple[int, int] | None = None  # partition and offset of the last one accepted

    def _ask_producer_id(self) -> tuple[int, int]:
        from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest

        try:
            reply = self._kafka.call(
                _INIT_PRODUCER_ID, InitProducerIdRequest(None, transaction_timeout_ms=60_000)
            )
        except Failure as failure:
            if failure.exit_code in _PASSING:
                raise
            return NO_PRODUCER, -1  # a server without them: at least once, then
        if reply.error_code:
            return NO_PRODUCER, -1
        return reply.producer_id, reply.producer_epoch

    def send(self, source: Iterable[Sequence[OutgoingRecord]]) -> None:
        """Send all of it. On any interruption the count of accepted records is told first."""
        progress = Progress("sending", is_quiet=self._session.settings.quiet)
        try:
            with progress, Interrupts() as interrupts:
                for chunk in source:
                    with interrupts.held():
                        self._send_chunk(chunk)
                    progress.update(self.accepted + self.failed)
        except KeyboardInterrupt:
            self._session.remark(f"interrupted: {self._accepted_text()}")
            raise
        except Failure as failure:
            if self.accepted:
                failure.why = f"{failure.why}; {self._accepted_text()}".removeprefix("; ")
                failure.exit_code = ExitCode.PARTIAL
            raise

    def _accepted_text(self) -> str:
        return f"{self.accepted} records had been accepted by '{self._topic}'"

    def outcome(self) -> ExitCode:
        if not self.failed:
            return ExitCode.OK
        return ExitCode.PARTIAL if self.accepted else ExitCode.FAILED

    # ── Batches ──────────────────────────────────────────────────────────────────────────────

    def _send_chunk(self, chunk: Sequence[OutgoingRecord]) -> None:
        waiting: dict[int, list[OutgoingRecord]] = {}
        for record in chunk:
            partition = self._partition_of(record)
            if partition is not None:
                waiting.setdefault(partition, []).append(record)
        self._turn = (self._turn + 1) % self._partition_count
        while waiting:
            # One batch of each partition at a time: their order within it is the input's.
            batches = {number: self._cut(number, records) for number, records in waiting.items()}
            self._produce(batches)
            for number, batch in batches.items():
                del waiting[number][: len(batch.records)]
            waiting = {number: records for number, records in waiting.items() if records}

    def _partition_of(self, record: OutgoingRecord) -> int | None:
        if record.partition is not None:
            if 0 <= record.partition < self._partition_count:
                return record.partition
            self._refuse([record], f"there is no partition {record.partition}")
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
        """Until each is accepted or refused for good, within the time one answer may take."""
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
        """One attempt; takes out what is settled and returns why the rest is not."""
        trouble: Failure | None = None
        try:
            for part in self._ask(left):
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
                self._refuse(batch.records, failure.why)
                del left[part.index]
            if trouble is not None:
                self._kafka.metadata([self._topic])  # somebody else may lead by now
        except Failure as failure:
            # The answer is lost, the batch perhaps not: only a numbered one is sent again.
            if failure.exit_code not in _PASSING or self._producer_id == NO_PRODUCER:
                raise
            trouble = failure
        return trouble

    def _ask(self, batches: Mapping[int, _Batch]) -> list[Any]:
        from penstock.wire.kafka.primitives import ZERO_UUID
        from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

        def request(places: Sequence[Place]) -> Any:
            parts = [
                ProducePartition(place.partition, batches[place.partition].data) for place in places
            ]
            topics = [ProduceTopic(self._topic, ZERO_UUID, parts)]
            return ProduceRequest(None, _ACKS_ALL, self._kafka.timeout_ms, topics)

        places = [Place(self._topic, number) for number in batches]
        replies = self._kafka.at_leaders(
            _PRODUCE, places, request, what=self._what, version_max=_BY_NAME_MAX
        )
        return [part for reply in replies for topic in reply.topics for part in topic.partitions]

    def _accept(self, partition: int, base_offset: int, batch: _Batch) -> None:
        count = len(batch.records)
        self._sequences[partition] = (self._sequences.get(partition, 0) + count) % _SEQUENCES
        self.accepted += count
        self.last = (partition, base_offset + count - 1 if base_offset >= 0 else -1)

    def _refuse(self, records: Sequence[OutgoingRecord], why: str) -> None:
        for record in records:
            self.failed += 1
            if self.failed <= _FAILURES_LISTED_MAX:
                click.echo(f"record {record.place} refused: {why}", err=True)
            elif self.failed == _FAILURES_LISTED_MAX + 1:
                click.echo("further refusals are counted, not listed", err=True)
