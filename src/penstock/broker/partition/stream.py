"""The Kafka view of a partition. Batches are not decoded. Their checksum was verified on arrival;
it does not cover base offset and leader epoch, which are set here. Consumers also get queue
messages, and lease events as control batches, which Kafka clients skip."""

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from penstock.broker.leases.leases import Leases
from penstock.broker.storage.flush import Flush
from penstock.broker.storage.journal import Journal, Replication
from penstock.cursor.producers import Append, Duplicate, Producers
from penstock.log.log import Log
from penstock.log.storage.batch_buffers import BatchBuffers
from penstock.model.calls import Fetch
from penstock.model.errors import Damaged, LeaderMoved, ProducerRefused
from penstock.model.levels import LOW_WATERMARK_FILES
from penstock.model.limits import READ_BYTES_MAX
from penstock.model.ports import BatchAppended, Clock, Fetched, Marker, StreamEnds
from penstock.net.slices import in_slices, unpacked
from penstock.record.batch import ATTR_TRANSACTIONAL, NO_PRODUCER, BatchHeader, parse_header
from penstock.record.control import TYPE_ABORT, TYPE_COMMIT, encode_marker_batch, iter_control
from penstock.record.opened import first_at
from penstock.wire.kafka.faults import ErrorCode

EMPTY_READS_MAX = 16  # reads per fetch to find a batch that is not empty
GAP_EXCUSED_MS = 10_000  # after this node became leader


class Stream:
    def __init__(self, log: Log, journal: Journal, producers: Producers, clock: Clock) -> None:
        self._log = log
        self._journal = journal
        self.producers = producers
        self._clock = clock
        excused_ms = GAP_EXCUSED_MS if journal.is_replicated else 0
        self._gaps_excused_until_ms = clock.mono_ms() + excused_ms
        self._listeners: set[Callable[[], None]] = set()

    def append(
        self, batches: Sequence[bytes | memoryview], *, is_append_time: bool
    ) -> tuple[BatchAppended, Flush | None]:
        """Append batches. Returns None instead of a flush if there is nothing to wait for."""
        wall_ms = self._clock.wall_ms()
        headers = [parse_header(batch) for batch in batches]
        duplicate = self._check(headers, wall_ms)
        if duplicate is not None:
            appended = BatchAppended(duplicate, -1, self._log.low_watermark, is_duplicate=True)
            is_safe = self._journal.high_watermark >= self._log.end_offset
            return appended, None if is_safe else self._journal.join()
        base_offset = -1
        append_time_ms = wall_ms if is_append_time else None
        try:
            for batch, header in zip(batches, headers, strict=True):
                placed = self._journal.append_batch(batch, header, append_time_ms=append_time_ms)
                self.producers.appended(placed, at_ms=wall_ms)
                if base_offset < 0:
                    base_offset = placed.base_offset
        finally:
            # Commit after the producers are updated: it wakes readers, which need the last stable
            # offset. Commit also after an error, for the batches before it.
            flush = self._journal.commit()
        at_ms = wall_ms if is_append_time else -1
        return BatchAppended(base_offset, at_ms, self._log.low_watermark), flush

    def _check(self, headers: Sequence[BatchHeader], wall_ms: int) -> int | None:
        """Check the batches. Returns the base offset of the stored batch if one is a duplicate."""
        for header in headers:
            verdict = self.producers.check(header, wall_ms=wall_ms)
            if isinstance(verdict, Duplicate):
                return verdict.base_offset
            if isinstance(verdict, Append):
                if header.base_sequence > 0 and header.producer_id not in self.producers:
                    self._excuse_gap()
                continue
            if verdict.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._excuse_gap()
            raise ProducerRefused(int(verdict.code), verdict.code.name)
        return None

    def _excuse_gap(self) -> None:
        """Raise a retriable error after a sequence gap if this node became leader recently: the
        previous leader may have rejected an earlier batch. After a sequence error, some producers
        would send all batches in flight again with a new epoch, as duplicates."""
        if self._clock.mono_ms() < self._gaps_excused_until_ms:
            raise LeaderMoved("An earlier batch of this producer has not arrived yet; retry.")

    def append_marker(self, marker: Marker) -> Flush:
        code = self.producers.check_marker(
            marker.producer_id, marker.producer_epoch, marker.coordinator_epoch
        )
        if code:
            raise ProducerRefused(int(code), code.name)
        wall_ms = self._clock.wall_ms()
        batch = encode_marker_batch(marker, timestamp=wall_ms)
        placed = self._journal.append_batch(batch, parse_header(batch))
        self.producers.marked(
            placed,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            at_ms=wall_ms,
        )
        return self._journal.commit() or self._journal.join()

    def fetch(self, call: Fetch, ends: StreamEnds) -> Fetched:
        """Return batches from ``call.offset`` on, for the isolation level of the call."""
        offset, is_committed = call.offset, call.is_committed
        up_to = ends.last_stable_offset if is_committed else ends.high_watermark
        if offset >= up_to:
            return Fetched(ends)
        found = self._read(offset, bytes_max=call.bytes_max, up_to=up_to, as_slice=call.as_slices)
        if not found.buffers:
            return Fetched(ends)
        aborted: Sequence[tuple[int, int]] = ()
        if is_committed:
            gone = self.producers.aborted_between(offset, found.next_offset)
            aborted = [(each.producer_id, each.first_offset) for each in gone]
        return Fetched(ends, found.buffers, found.next_offset, found.record_count, aborted)

    def _read(self, offset: int, *, bytes_max: int, up_to: int, as_slice: bool) -> BatchBuffers:
        """Read batches, but skip those emptied by compaction, because some clients give up after a
        few replies without records. If all are empty, return the last ones."""
        found = self._log.read_buffers(offset, bytes_max=bytes_max, up_to=up_to, as_slice=as_slice)
        for _ in range(EMPTY_READS_MAX - 1):
            if not found.is_all_empty or found.next_offset >= up_to:
                break
            more = self._log.read_buffers(found.next_offset, bytes_max=bytes_max, up_to=up_to)
            if not more.buffers:
                break
            found = more
        return found

    async def find_time(
        self, timestamp_ms: int, *, start_offset: int, tenant: str
    ) -> tuple[int, int]:
        """Return offset and timestamp of the first record at or after a time; (-1, -1) if none."""
        high_watermark = self._journal.high_watermark
        offset = max(self._log.find_time(timestamp_ms), start_offset)
        while offset < high_watermark:
            batches = self._log.read(offset, bytes_max=1, up_to=high_watermark)
            if not batches:
                break
            header = parse_header(batches[0])
            offset = header.next_offset
            if header.is_control or header.max_timestamp < timestamp_ms:
                continue
            blob = await unpacked(batches[0], header, tenant=tenant)
            found = await in_slices(first_at(blob, header, timestamp_ms, start_offset=start_offset))
            if found is not None:
                return found
        return -1, -1

    def on_advance(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def advanced(self) -> None:
        if self._listeners:
            for listener in tuple(self._listeners):
                listener()

    def trim(self, start_offset: int) -> None:
        self.producers.trim(start_offset)
        self.advanced()  # readers also wait for a new start offset

    def snapshot(self) -> bytes:
        wall_ms = self._clock.wall_ms()
        self.producers.expire(wall_ms=wall_ms)
        return self.producers.snapshot(wall_ms=wall_ms)


def count_messages(log: Log, start: int, end: int, *, bytes_max: int) -> Generator[None, None, int]:
    """Count the messages in [start, end). Yields after each read, to let other tasks run."""
    count = 0
    while start < end:
        start = max(start, log.start_offset)  # segments may have been deleted since the last read
        try:
            batches = log.read(start, bytes_max=bytes_max)
        except Damaged:
            return count
        if not batches:
            return count
        for data in batches:
            header = parse_header(data)
            if not header.is_control and start < end:
                # A compacted batch spans more offsets than it has messages.
                span = min(header.next_offset, end) - max(start, header.base_offset)
                count += min(span, header.count)
            start = header.next_offset
        yield
    return count


def replay_producers(producers: Producers, batch: bytes, header: BatchHeader, at_ms: int) -> None:
    if header.is_control and header.attributes & ATTR_TRANSACTIONAL:
        for _, kind, value in iter_control(batch):
            if kind in (TYPE_ABORT, TYPE_COMMIT):
                epoch = int.from_bytes(value[2:6], "big", signed=True)
                producers.marked(
                    header, is_commit=kind == TYPE_COMMIT, coordinator_epoch=epoch, at_ms=at_ms
                )
    elif header.producer_id != NO_PRODUCER:
        producers.appended(header, at_ms=at_ms)


@dataclass
class LowWatermark:
    """The first readable offset of a partition. A stream stores it in a file (``docs/adr/0032``),
    first on this node, then on followers, and drops earlier records from the share cursors. Queues,
    and clusters below feature level LOW_WATERMARK_FILES, append a Trim event instead."""

    log: Log
    journal: Journal
    pool: Executor
    views: Callable[[], Iterable[Leases]]
    replication: Replication | None
    is_queue: Callable[[], bool]
    _storing: asyncio.Task[None] | None = None
    _requested: int = 0  # the largest offset that a caller waits for

    async def move(self, offset: int, *, is_expiry: bool = True) -> bool:
        """Hide all records below ``offset`` on this node. If True is returned, the caller must wait
        until other replicas have stored the offset (``Replication.low_watermark_held``)."""
        level = LOW_WATERMARK_FILES if self.replication is None else self.replication.level
        is_file = level >= LOW_WATERMARK_FILES and not self.is_queue()
        if is_file:
            await self._store(offset)
        for leases in tuple(self.views()):
            passed = await self._passed(leases, offset)
            events = leases.clip(offset, passed=passed, is_expiry=is_expiry)
            if not is_file:
                await leases.settled(events)  # later leaders will read the event
        return is_file and self.replication is not None

    async def rest(self) -> None:
        if self._storing is not None:
            await asyncio.wait([self._storing])

    async def _store(self, offset: int) -> None:
        self._requested = max(self._requested, offset)
        while self.log.stored_low_watermark < offset:
            if self.journal.failure is not None:
                raise self.journal.failure
            if self._storing is None:
                work = self._write(self._requested)
                self._storing = asyncio.create_task(work, name="store a low watermark")
            await asyncio.shield(self._storing)

    async def _write(self, offset: int) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.pool, self.log.store_low_watermark, offset)
        finally:
            self._storing = None
        if self.replication is not None:
            self.replication.stored_low_watermark(offset)

    async def _passed(self, leases: Leases, offset: int) -> int:
        """Count the messages below ``offset`` that the cursor has never leased."""
        while True:
            head = leases.cursor.head
            passed = await self.count(head, min(offset, leases.cursor.until))
            if leases.cursor.head == head:
                return passed

    async def count(self, start: int, end: int) -> int:
        return await in_slices(count_messages(self.log, start, end, bytes_max=READ_BYTES_MAX))
