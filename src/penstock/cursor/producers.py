"""Finds duplicate batches, sequence gaps and open transactions of the producers of one partition.

The state is derived from batch headers, so followers and restarts rebuild it from the log, except
the time at which each producer was last seen. Only transaction markers are decoded, to learn
whether they commit or abort. Sequence numbers count records from 0 to 2^31 - 1 and then restart at
0. A producer that was silent for a day is forgotten, and its next batch may have any sequence
number."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from typing import TypeAlias

import msgspec
from msgspec.structs import astuple

from penstock.cursor.rows import framed, unframed
from penstock.model.ports import ProducerSeen
from penstock.record.batch import ATTR_TRANSACTIONAL, NO_PRODUCER, BatchHeader
from penstock.wire.kafka.faults import ErrorCode

BATCHES_KEPT = 5  # the maximum that a client may have in flight
SEQUENCE_COUNT = 2**31
PRODUCERS_MAX = 100_000  # per partition, at most 100 MB; the longest silent one is evicted
ABORTED_MAX = 100_000  # per partition; if full, no transaction can begin until cleaning
IDLE_MS_MAX = 24 * 3_600_000
NO_OFFSET = -1
_ENDED_MAX = 1_000  # ended transactions that the high watermark has not passed yet

_MAGIC = b"PPS1"


class Append(msgspec.Struct, frozen=True, gc=False):
    pass


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The result for a batch that is already in the log. The broker sends the first reply again."""

    base_offset: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    code: ErrorCode


Verdict: TypeAlias = Append | Duplicate | Refused

APPEND = Append()


class Aborted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer_id: int
    first_offset: int
    last_offset: int  # offset of the abort marker
    # First offset of the oldest transaction still open then: later aborts do not begin before it.
    stable_offset: int


BatchRow: TypeAlias = tuple[int, int, int]  # first sequence, last sequence, base offset


class _Producer(msgspec.Struct):
    epoch: int
    batches: deque[BatchRow] = msgspec.field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    seen_at_ms: int = 0
    first_offset: int = NO_OFFSET  # first offset of the open transaction
    coordinator_epoch: int = -1

    @property
    def is_open(self) -> bool:
        return self.first_offset != NO_OFFSET

    def raise_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    next_offset: int
    # id, epoch, batches, age, first offset, coordinator epoch; longest silent first
    producers: list[tuple[int, int, list[BatchRow], int, int, int]]
    ended: list[tuple[int, int]]
    aborted: list[Aborted]


_decoder = msgspec.msgpack.Decoder(_Snapshot)


class Producers:
    def __init__(
        self, *, producers_max: int = PRODUCERS_MAX, aborted_max: int = ABORTED_MAX
    ) -> None:
        self._producers_max = producers_max
        self._aborted_max = aborted_max
        self._producers: dict[int, _Producer] = {}  # longest silent first
        self._open: dict[int, int] = {}  # open transactions: first offset → producer id, ascending
        # (first offset, marker offset) of transactions whose marker is not committed yet
        self._ended: deque[tuple[int, int]] = deque()
        self._aborted: list[Aborted] = []  # sorted by the offset of the marker
        self.next_offset = 0  # offset from which a scan of the log must continue

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def check(self, header: BatchHeader, *, wall_ms: int) -> Verdict:
        """Return whether a client's batch may be appended, is a duplicate or must be rejected."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            is_transactional = header.attributes & ATTR_TRANSACTIONAL
            return Refused(ErrorCode.INVALID_TXN_STATE) if is_transactional else APPEND
        if header.base_sequence < 0 or header.producer_epoch < 0:
            return Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        producer = self._known(producer_id, wall_ms)
        if producer is None:
            return self._check_transaction(header, None)
        if header.producer_epoch < producer.epoch:
            return Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                return Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            return self._check_transaction(header, producer)
        first, last = header.base_sequence, _last_sequence(header)
        for batch_first, batch_last, base_offset in producer.batches:
            if first == batch_first and last == batch_last:
                return Duplicate(base_offset)
        verdict = _check_sequence(producer.batches, first, last)
        return verdict or self._check_transaction(header, producer)

    def _check_transaction(self, header: BatchHeader, producer: _Producer | None) -> Verdict:
        if not header.attributes & ATTR_TRANSACTIONAL:
            # A plain batch inside the producer's transaction would be read before the marker.
            is_open = producer is not None and producer.is_open
            return Refused(ErrorCode.INVALID_TXN_STATE) if is_open else APPEND
        if len(self._aborted) + len(self._open) >= self._aborted_max and (
            producer is None or not producer.is_open
        ):
            return Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        return APPEND

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> ErrorCode:
        """Return NONE if a marker may be written, else the error code. A repeated marker is
        accepted, because a coordinator writes a marker again if it missed the reply."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer_epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer is not None and coordinator_epoch < producer.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.is_open and producer.epoch == producer_epoch

    def seen(self, *, wall_ms: int) -> list[ProducerSeen]:
        return [
            ProducerSeen(
                producer_id,
                producer.epoch,
                producer.batches[-1][1] if producer.batches else -1,
                producer.seen_at_ms,
                producer.coordinator_epoch,
                producer.first_offset,
            )
            for producer_id, producer in self._producers.items()
            if self._known(producer_id, wall_ms) is not None
        ]

    def _known(self, producer_id: int, wall_ms: int) -> _Producer | None:
        producer = self._producers.get(producer_id)
        if producer is None or producer.is_open:
            return producer
        return None if producer.seen_at_ms + IDLE_MS_MAX <= wall_ms else producer

    def appended(self, header: BatchHeader, *, at_ms: int) -> None:
        assert header.base_offset >= self.next_offset, "batches must follow the order of the log"
        self.next_offset = header.next_offset
        if header.producer_id == NO_PRODUCER or header.is_control:
            return
        producer = self._touch(header.producer_id, header.producer_epoch, at_ms)
        producer.raise_epoch(header.producer_epoch)
        first, last = header.base_sequence, _last_sequence(header)
        batches = producer.batches
        if batches and first != (batches[-1][1] + 1) % SEQUENCE_COUNT:
            batches.clear()  # the producer was forgotten when this batch was accepted
        batches.append((first, last, header.base_offset))
        if header.attributes & ATTR_TRANSACTIONAL and not producer.is_open:
            producer.first_offset = header.base_offset
            self._open[header.base_offset] = header.producer_id

    def marked(
        self, header: BatchHeader, *, is_commit: bool, coordinator_epoch: int, at_ms: int
    ) -> None:
        assert header.is_control, "a marker must be a control batch"
        assert header.base_offset >= self.next_offset, "batches must follow the order of the log"
        self.next_offset = header.next_offset
        producer = self._touch(header.producer_id, header.producer_epoch, at_ms)
        producer.raise_epoch(header.producer_epoch)
        producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
        if not producer.is_open:
            return
        first, marker = producer.first_offset, header.base_offset
        producer.first_offset = NO_OFFSET
        del self._open[first]
        self._ended.append((first, marker))
        if len(self._ended) > _ENDED_MAX:
            # Merge the oldest two, which can only make the last stable offset too low.
            one, two = self._ended.popleft(), self._ended.popleft()
            self._ended.appendleft((min(one[0], two[0]), two[1]))
        if not is_commit:
            stable = next(iter(self._open), marker + 1)
            self._aborted.append(Aborted(header.producer_id, first, marker, stable))

    def _touch(self, producer_id: int, epoch: int, at_ms: int) -> _Producer:
        producer = self._producers.pop(producer_id, None)
        if producer is None:
            producer = _Producer(epoch)
            if len(self._producers) >= self._producers_max:
                silent = (i for i, each in self._producers.items() if not each.is_open)
                self._producers.pop(next(silent, NO_PRODUCER), None)
        producer.seen_at_ms = max(producer.seen_at_ms, at_ms)
        self._producers[producer_id] = producer
        return producer

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset below which every transaction has ended, with a commit or abort marker
        below the high watermark."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        first_open = next(iter(self._open), high_watermark)
        first_ended = min((first for first, _ in ended), default=high_watermark)
        return min(first_open, first_ended, high_watermark)

    def aborted_between(self, start: int, end: int) -> list[Aborted]:
        """Return the aborted transactions that overlap [start, end), sorted by first offset."""
        found = []
        at = bisect_left(self._aborted, start, key=lambda aborted: aborted.last_offset)
        for aborted in self._aborted[at:]:
            if aborted.first_offset < end:
                found.append(aborted)
            if aborted.stable_offset >= end:
                break
        found.sort(key=lambda aborted: aborted.first_offset)
        return found

    def trim(self, start_offset: int) -> None:
        """Forget aborted transactions that ended before the new start of the log."""
        at = bisect_left(self._aborted, start_offset, key=lambda aborted: aborted.last_offset)
        del self._aborted[:at]

    def forget_aborted(self, gone: Collection[tuple[int, int, int]]) -> None:
        """Forget aborted transactions, given as (producer, first offset, marker offset)."""
        self._aborted = [each for each in self._aborted if astuple(each)[:3] not in gone]

    def expire(self, *, wall_ms: int) -> int:
        """Forget producers that were silent for a day, and return their number."""
        ended_ms = wall_ms - IDLE_MS_MAX
        old = []
        for producer_id, producer in self._producers.items():
            if producer.seen_at_ms > ended_ms:
                break  # the rest was seen later
            if not producer.is_open:
                old.append(producer_id)
        for producer_id in old:
            del self._producers[producer_id]
        return len(old)

    def snapshot(self, *, wall_ms: int) -> bytes:
        """Encode the state. A snapshot only makes the next start faster and may be deleted."""
        rows = []
        for producer_id, p in self._producers.items():
            age_ms = max(0, wall_ms - p.seen_at_ms)
            known = (list(p.batches), age_ms, p.first_offset, p.coordinator_epoch)
            rows.append((producer_id, p.epoch, *known))
        value = _Snapshot(self.next_offset, rows, list(self._ended), self._aborted)
        return framed(_MAGIC, value)

    @classmethod
    def restore(cls, data: bytes, *, wall_ms: int, **limits: int) -> "Producers":
        """Decode a snapshot. Raises Damaged if the bytes are not a valid snapshot."""
        value = unframed(data, _MAGIC, _decoder, "producer snapshot")
        self = cls(**limits)
        self.next_offset = value.next_offset
        self._ended.extend(value.ended)
        self._aborted = value.aborted
        for producer_id, epoch, batches, age_ms, first_offset, coordinator_epoch in value.producers:
            kept = deque(batches, maxlen=BATCHES_KEPT)
            self._producers[producer_id] = _Producer(
                epoch, kept, wall_ms - age_ms, first_offset, coordinator_epoch
            )
        self._open = {
            p.first_offset: i
            for i, p in sorted(self._producers.items(), key=lambda pair: pair[1].first_offset)
            if p.is_open
        }
        return self


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_COUNT


def _check_sequence(batches: deque[BatchRow], first: int, last: int) -> Refused | None:
    """Return None if the batch has the next sequence number, else the error to return."""
    newest = batches[-1][1] if batches else -1
    if first == (newest + 1) % SEQUENCE_COUNT:
        return None
    if batches:
        oldest = batches[0][0]
        distance = (oldest - 1 - last) % SEQUENCE_COUNT
        if distance < SEQUENCE_COUNT // 2:
            # The batch is a duplicate, but its offset is forgotten. Clients accept this code.
            return Refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    return Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
