"""One partition: the journal, the lease cursor and the waits, joined. No policy lives here.

Every call is the same three steps: the cursor decides on the spot (no await between a decision and
the change it licenses), the journal appends the event at the end of the turn, and the caller is
answered when the event is as safe as the call promises:

==========  =====================================================================================
append      committed
lease       written (standard: a lost lease only means another delivery) or committed (FIFO)
ack, purge  committed: an acknowledged delete never comes back
extend      committed
==========  =====================================================================================
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from penstock.broker.compaction import Compactor
from penstock.broker.journal import Flush, Journal
from penstock.broker.restore import Restored, origin_of, restore, write_checkpoint
from penstock.broker.stream import Stream
from penstock.broker.surroundings import Surroundings
from penstock.broker.taken import Taken
from penstock.broker.waits import Waits
from penstock.cursor.dedup import dedup_key
from penstock.cursor.events import AckReason, Event, encode
from penstock.cursor.outcome import Pick
from penstock.log.compaction import Unreadable
from penstock.log.damage import DamagedRange
from penstock.log.log import Detached, Log
from penstock.log.retention import droppable
from penstock.model import limits
from penstock.model.errors import Damaged, OffsetOutOfRange, Overloaded, TopicNotFound
from penstock.model.message import Appended, Claim, Delivery, Message, Record
from penstock.model.ports import (
    BatchAppended,
    Fetched,
    LeaseRequest,
    Marker,
    Peeked,
    StreamEnds,
)
from penstock.model.stream import settings_of
from penstock.model.topic import Fsync, Topic
from penstock.record.batch import BatchHeader, parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_at, decode_batch

log_ = logging.getLogger(__name__)

UNREADABLE_RECORDS_MAX = 100_000  # of one batch that are counted as expired one by one
_UNREADABLE = Message(message_id=bytes(16), body=b"")
OLDEST_READ_BYTES = 4 * limits.KIB
EXPIRY_ROUNDS_MAX = 64  # read-aheads in one cleaning; the next one goes on
CHECKPOINT_BYTES = 16 * limits.MIB  # of log between checkpoints: what a start may have to replay


class _Fresh:
    """A batch just appended, still as messages: a cursor that is caught up takes them from here
    instead of decoding what was encoded a moment ago."""

    __slots__ = ("base_offset", "messages", "next_offset", "now_ms", "previous_end")

    def __init__(
        self,
        previous_end: int,
        base_offset: int,
        next_offset: int,
        now_ms: int,
        messages: Sequence[Message],
    ) -> None:
        self.previous_end = previous_end  # between it and base_offset stand only events
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.now_ms = now_ms
        self.messages = messages


class Partition:
    def __init__(
        self,
        topic: Topic,
        index: int,
        log: Log,
        restored: Restored,
        waits: Waits,
        surroundings: Surroundings,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.waits = waits
        self.damage: Damaged | None = None
        self.sent_count = self.received_count = self.acked_count = 0
        self.dead_count = self.expired_count = 0
        self._origin = origin_of(topic, index)
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._meter = surroundings.meter
        self._loop = asyncio.get_running_loop()
        self._cursor = restored.cursor
        self._dedup = restored.dedup
        self._fresh: deque[_Fresh] = deque()
        self._fresh_count = 0
        self._ahead: deque[Record] = deque()
        self._ahead_end = 0
        self._messages_end = log.end_offset  # behind the last batch of messages
        self._oldest: tuple[int, int] | None = None  # low offset, when its record was sent
        self._wake_timer: asyncio.TimerHandle | None = None
        self._wake_at_ms = 0
        self._checkpoint_bytes = 0
        self.stream: Stream
        self.journal = Journal(
            log,
            fsync=topic.fsync or surroundings.fsync_default,
            clock=surroundings.clock,
            pool=surroundings.pool,
            on_appended=self._appended,
            on_batch=self._batch_appended,
            on_high_watermark=self._advanced,
            on_lost=self._reload,
            on_synced=surroundings.meter.fsynced,
            on_committed=surroundings.meter.appended,
        )
        self.stream = Stream(log, self.journal, restored.producers, surroundings.clock)
        self._compactor = Compactor(
            log, clock=surroundings.clock, pool=surroundings.pool, disk=surroundings.disk
        )

    # ── append ───────────────────────────────────────────────────────────────────────────────

    async def append(self, messages: Sequence[Message]) -> Sequence[Appended]:
        if self.damage is not None:
            raise Overloaded(f"the partition takes no messages while it is damaged: {self.damage}")
        journal = self.journal
        if self.topic.is_fifo:
            # Before the first of them is handed in: a call is refused whole or not at all.
            self._dedup.check_room(len(messages), wall_ms=self._clock.wall_ms())
        results: list[Appended] = []
        flush: Flush | None = None
        behind = 0
        for message in messages:
            offset = journal.next_offset
            key = dedup_key(message, self.topic.dedup_scope)
            if key is not None:
                wall_ms = self._clock.wall_ms()
                first = self._dedup.find(key, wall_ms=wall_ms)
                if first is not None:
                    self._meter.dedup_hit()
                    behind = max(behind, first[0] + 1)
                    results.append(Appended(self.index, first[0], first[1], is_duplicate=True))
                    continue
                self._dedup.remember(key, offset, message.message_id, appended_at_ms=wall_ms)
            flush = journal.add_message(message)
            results.append(Appended(self.index, offset, message.message_id))
        if flush is not None:
            await flush.sent.wait()
        elif behind > journal.high_watermark:
            # The first message of this id is not committed yet: no answer may promise it sooner.
            await journal.join().committed.wait()
        return results

    def _appended(
        self, base_offset: int, next_offset: int, now_ms: int, messages: Sequence[Message]
    ) -> None:
        if self.topic.is_fifo:
            delay_ms = self.topic.settings.delay_ms
            delays = [(base_offset + i, delay_ms) for i in range(len(messages))] if delay_ms else ()
        else:
            delays = [
                (base_offset + i, message.delay_ms)
                for i, message in enumerate(messages)
                if message.delay_ms
            ]
        self._cursor.appended(
            base_offset,
            len(messages),
            next_offset=next_offset,
            delays=delays,
            appended_at_ms=now_ms,
            now_ms=self._clock.mono_ms(),
        )
        self.sent_count += len(messages)
        previous_end, self._messages_end = self._messages_end, next_offset
        if self._fresh_count < limits.WINDOW_RECORDS_MAX:
            self._fresh.append(_Fresh(previous_end, base_offset, next_offset, now_ms, messages))
            self._fresh_count += len(messages)

    def _batch_appended(self, header: BatchHeader) -> None:
        """A producer's batch, which nobody has opened: its delays, if any, are not known yet."""
        if header.is_control:
            return  # the marker of a transaction is no message
        self._cursor.appended(
            header.base_offset,
            header.count,
            next_offset=header.next_offset,
            now_ms=self._clock.mono_ms(),
        )
        self._messages_end = header.next_offset
        self.sent_count += header.count

    # ── lease ────────────────────────────────────────────────────────────────────────────────

    def take(self, request: LeaseRequest, *, attempts_max: int | None, in_flight_max: int) -> Taken:
        """Lease up to ``request.count`` records now. The caller answers once ``taken.flush`` is as
        safe as the topic asks."""
        settings = self.topic.settings
        now_ms = self._clock.mono_ms()
        wall_ms = self._clock.wall_ms()
        taken = Taken([], [])
        deliveries = taken.deliveries
        is_dry = False
        while True:
            outcome = self._cursor.lease(
                count=request.count - len(deliveries),
                lease_ms=request.lease_ms + self._surroundings.grain_ms if request.lease_ms else 0,
                attempts_max=attempts_max,
                retention_ms=settings.retention_ms,
                queue_delay_ms=settings.delay_ms,
                in_flight_max=in_flight_max,
                attempt_id=request.attempt_id,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
            if outcome.event is not None:
                taken.flush = self.journal.add_event(encode(outcome.event))
            for pick in outcome.picks:
                record = pick.record or self.read(pick.offset)
                if record is not None:
                    deliveries.append(self._delivery(pick, record))
            taken.dead.extend(outcome.dead)
            if outcome.expired:
                self.expired_count += outcome.expired
                self._meter.expired(outcome.expired)
            if not outcome.needs_feed or len(deliveries) >= request.count or is_dry:
                break
            if not self._feed(now_ms, wall_ms):
                # Nothing more to read: let the cursor make do with what it has seen.
                self._cursor.feed((), self._cursor.scan_from, now_ms=now_ms, wall_ms=wall_ms)
                is_dry = True
        taken.is_over_limit = outcome.is_over_limit
        self.received_count += len(deliveries)
        return taken

    def _delivery(self, pick: Pick, record: Record) -> Delivery:
        return Delivery(
            partition=self.index,
            record=record,
            lease_seq=pick.lease_seq,
            attempt=pick.attempt + record.message.attempts,
            first_leased_at_ms=pick.first_leased_at_ms,
        )

    def _feed(self, now_ms: int, wall_ms: int) -> bool:
        """Read ahead of the cursor. False when there is nothing more below the high watermark."""
        cursor = self._cursor
        scan_from = cursor.scan_from
        high_watermark = self.journal.high_watermark
        fresh = self._fresh
        while fresh and fresh[0].base_offset < scan_from:
            self._fresh_count -= len(fresh.popleft().messages)
        if scan_from >= high_watermark or scan_from >= self._messages_end:
            return False
        if (
            fresh
            and fresh[0].previous_end <= scan_from <= fresh[0].base_offset
            and fresh[0].next_offset <= high_watermark
        ):
            batch = fresh.popleft()
            self._fresh_count -= len(batch.messages)
            base, at_ms = batch.base_offset, batch.now_ms
            records = [Record(base + i, at_ms, m) for i, m in enumerate(batch.messages)]
            cursor.feed(records, batch.next_offset, now_ms=now_ms, wall_ms=wall_ms)
            return True
        ahead = self._ahead
        while ahead and ahead[0].offset < scan_from:
            ahead.popleft()
        if not ahead and not self._read_ahead(scan_from, high_watermark):
            return False
        cursor.feed(ahead, self._ahead_end, now_ms=now_ms, wall_ms=wall_ms)
        return True

    def _read_ahead(self, scan_from: int, high_watermark: int) -> bool:
        """Decode a stretch of the log. The cursor takes what fits into its window; the rest waits
        here, so that nothing is decoded twice."""
        try:
            batches = self.log.read(
                scan_from, bytes_max=limits.READ_BYTES_MAX, up_to=high_watermark
            )
        except Damaged as damage:
            self.found_damage(damage)
            return False
        for data in batches:
            header = parse_header(data)
            self._ahead_end = header.next_offset
            if not header.is_control:
                self._ahead.extend(self._decode(data, header, scan_from))
        return bool(batches)

    def _decode(self, data: bytes, header: BatchHeader, from_offset: int) -> list[Record]:
        """The records of a batch. One that a stream took unopened may turn out to be unreadable
        when it is opened as a queue: its records are then given times so old that they count as
        expired, and the queue goes on behind them."""
        try:
            return decode_batch(data, origin=self._origin, from_offset=from_offset)
        except MalformedBatch as error:
            log_.error(
                "unreadable batch passed over",
                extra={
                    "topic": self.topic.name,
                    "partition": self.index,
                    "offset": header.base_offset,
                    "records": header.count,
                    "reason": str(error),
                },
            )
            start = max(from_offset, header.base_offset)
            count = min(header.next_offset - start, header.count, UNREADABLE_RECORDS_MAX)
            return [Record(start + n, 0, _UNREADABLE) for n in range(count)]

    def read(self, offset: int) -> Record | None:
        """One record again, for a later lease of it. None, and the damage noted, if it cannot be
        read: the lease then simply runs out."""
        try:
            batches = self.log.read(offset, bytes_max=1)
        except Damaged as damage:
            self.found_damage(damage)
            return None
        return decode_at(batches[0], offset, origin=self._origin)

    def note_known_damage(self) -> None:
        """What opening the log has found. Damage to records that are finished harms nobody."""
        low = self._cursor.low_offset()
        for damage in self.log.damage:
            if damage.next_offset > low:
                self.found_damage(DamagedRange(self.log.folder, damage))

    def found_damage(self, damage: Damaged) -> None:
        if self.damage is None:
            self.damage = damage
            log_.error(
                "damage in the log",
                extra={"topic": self.topic.name, "partition": self.index, "reason": str(damage)},
            )

    # ── ack, extend, purge ───────────────────────────────────────────────────────────────────

    async def ack(
        self, claims: Sequence[Claim], *, reason: AckReason = AckReason.ACKED
    ) -> Sequence[Exception | None]:
        outcome = self._cursor.ack(claims, now_ms=self._clock.mono_ms(), reason=reason)
        flush = self._journal_events(outcome.events)
        if self.topic.is_fifo:
            self.wake()  # the group may go on
        if flush is not None:
            await flush.committed.wait()
        elif self.journal.high_watermark < self.log.end_offset:
            # Gone already, but perhaps by an ack that is not committed yet.
            await self.journal.join().committed.wait()
        if reason is AckReason.ACKED:
            self.acked_count += sum(result is None for result in outcome.reply)
        return outcome.reply

    async def extend(self, claims: Sequence[tuple[Claim, int]]) -> Sequence[Exception | None]:
        grain_ms = self._surroundings.grain_ms
        rounded = [
            (claim, lease_ms + grain_ms if 0 < lease_ms < limits.LEASE_MS_MAX else lease_ms)
            for claim, lease_ms in claims
        ]
        outcome = self._cursor.extend(rounded, now_ms=self._clock.mono_ms())
        flush = self._journal_events(outcome.events)
        self.wake()  # a release makes records available; any change may move the next wake
        if flush is not None:
            await flush.committed.wait()
        return outcome.reply

    async def purge(self) -> None:
        self.journal.flush()  # messages of this turn stand before the purge
        outcome = self._cursor.purge(end_offset=self.log.end_offset)
        self._dedup.forget_below(self.log.end_offset)
        flush = self._journal_events(outcome.events)
        if flush is not None:
            await flush.committed.wait()

    def _journal_events(self, events: Sequence[Event]) -> Flush | None:
        flush = None
        for event in events:
            flush = self.journal.add_event(encode(event))
        return flush

    async def append_batches(
        self, batches: Sequence[bytes | memoryview], *, acks: int, is_append_time: bool
    ) -> BatchAppended:
        if self.damage is not None:
            raise Overloaded(f"the partition takes no messages while it is damaged: {self.damage}")
        appended, flush = self.stream.append(batches, is_append_time=is_append_time)
        if flush is not None and acks != 0:
            await flush.committed.wait()
        return appended

    async def append_marker(self, marker: Marker) -> None:
        await self.stream.append_marker(marker).committed.wait()

    def ends(self) -> StreamEnds:
        ends = self.stream.ends
        return msgspec.structs.replace(ends, start_offset=self.start_offset)

    @property
    def start_offset(self) -> int:
        """Where readers by offset begin. Segments go whole; on a stream, what was deleted before
        a segment could go is hidden by the cursor's head, which nobody leases forward there."""
        if self.topic.is_queue:
            return self.log.start_offset
        return max(self.log.start_offset, min(self._cursor.head, self.journal.high_watermark))

    def fetch(self, offset: int, *, bytes_max: int, is_committed: bool) -> Fetched:
        ends = self.ends()
        if not ends.start_offset <= offset <= ends.high_watermark:
            raise OffsetOutOfRange(offset, ends.start_offset, ends.high_watermark)
        try:
            fetched = self.stream.fetch(offset, bytes_max=bytes_max, is_committed=is_committed)
        except Damaged as damage:
            self.found_damage(damage)
            raise
        return msgspec.structs.replace(fetched, ends=ends)

    async def delete_records(self, before: int) -> int:
        """Hide everything below an offset at once; the segments follow when they are done for."""
        if before < 0:
            before = self.journal.high_watermark
        if not self.start_offset <= before <= self.journal.high_watermark:
            raise OffsetOutOfRange(before, self.start_offset, self.journal.high_watermark)
        passed = await self._count_messages(self._cursor.head, before)
        outcome = self._cursor.trim(before, passed=passed if before > self._cursor.head else 0)
        flush = self._journal_events(outcome.events)
        if flush is not None:
            await flush.committed.wait()
        await self._remove(self.log.detach_before(before))
        self.stream.trim(self.start_offset)
        return self.start_offset

    # ── waking ───────────────────────────────────────────────────────────────────────────────

    def _advanced(self) -> None:
        self.stream.advanced()
        self.wake()

    def wake(self) -> None:
        """Something may have become available: serve the waits, then sleep until the next time
        something does."""
        if not self.waits:
            return
        self.waits.serve(self.take_for_wait)
        self.arm()

    take_for_wait: Callable[[LeaseRequest], Taken]  # set by the queue, which knows the limits

    def arm(self) -> None:
        """Wake again when the next lease or delay ends, as long as somebody waits."""
        if not self.waits:
            return
        at_ms = self._cursor.next_wake_ms()
        if at_ms is None:
            return
        if self._wake_timer is not None:
            if self._wake_at_ms <= at_ms:
                return
            self._wake_timer.cancel()
        self._wake_at_ms = at_ms
        delay_s = max(1, at_ms - self._clock.mono_ms()) / 1_000
        self._wake_timer = self._loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._wake_timer = None
        self.wake()

    # ── looking ──────────────────────────────────────────────────────────────────────────────

    def counts(self) -> tuple[int, int, int]:
        stats = self._cursor.stats(
            now_ms=self._clock.mono_ms(), queue_delay_ms=self.topic.settings.delay_ms
        )
        return stats.visible, stats.in_flight, stats.delayed

    @property
    def in_flight(self) -> int:
        return self._cursor.stats(now_ms=self._clock.mono_ms()).in_flight

    def oldest_sent_at_ms(self) -> int | None:
        """When the oldest record that is not gone was sent; None when there is none."""
        if not any(self.counts()):
            return None
        low = self._cursor.low_offset()
        if self._oldest is None or self._oldest[0] != low:
            try:
                peeked, _ = self.peek(start=low, count=1, read_bytes_max=OLDEST_READ_BYTES)
            except Damaged as damage:
                self.found_damage(damage)
                return None
            if not peeked:
                return None
            # Asked for again and again by dashboards, while the low offset moves only with acks.
            self._oldest = low, peeked[0].record.sent_at_ms
        return self._oldest[1]

    def peek(
        self, *, start: int, count: int, read_bytes_max: int = limits.READ_BYTES_MAX
    ) -> tuple[list[Peeked], int]:
        """Records from ``start`` on that are not gone, and where to look next. Looks through a
        bounded stretch of the log: an answer with nothing in it may still have more behind it."""
        end = self.journal.high_watermark
        if start < 0:
            return [], end
        now_ms = self._clock.mono_ms()
        wall_ms = self._clock.wall_ms()
        offset = max(start, self.log.start_offset)
        found: list[Peeked] = []
        read_bytes = 0
        while offset < end and len(found) < count and read_bytes < 8 * limits.READ_BYTES_MAX:
            batches = self.log.read(offset, bytes_max=read_bytes_max, up_to=end)
            if not batches:
                break
            for data in batches:
                header = parse_header(data)
                read_bytes += len(data)
                if not header.is_control:
                    for record in decode_batch(data, origin=self._origin, from_offset=offset):
                        if len(found) == count:
                            return found, record.offset
                        state = self._cursor.state_of(
                            record.offset,
                            now_ms=now_ms,
                            wall_ms=wall_ms,
                            queue_delay_ms=self.topic.settings.delay_ms,
                            record=record,
                        )
                        if state is not None:
                            attempts = self._cursor.attempts_of(record.offset)
                            found.append(Peeked(self.index, record, state, attempts))
                offset = header.next_offset
        return found, offset

    # ── life ─────────────────────────────────────────────────────────────────────────────────

    def _reload(self) -> None:
        """The log refused what the cursor had already decided: go back to what the log says."""
        restored = restore(self.log, self.topic, self.index, surroundings=self._surroundings)
        self._cursor, self._dedup = restored.cursor, restored.dedup
        self.stream.replace_producers(restored.producers)
        self._fresh.clear()
        self._fresh_count = 0
        self._ahead.clear()
        self._messages_end = self.log.end_offset

    @property
    def is_checkpoint_due(self) -> bool:
        return self.journal.appended_bytes - self._checkpoint_bytes >= CHECKPOINT_BYTES

    async def checkpoint(self) -> None:
        """Write the cursor down as it is, once everything it has seen is committed."""
        self.journal.flush()
        end_offset = self.log.end_offset
        self._checkpoint_bytes = self.journal.appended_bytes
        snapshot = self._cursor.snapshot(now_ms=self._clock.mono_ms())
        producers = self.stream.snapshot()
        if self.journal.high_watermark < end_offset:
            await self.journal.join().committed.wait()
        await self._loop.run_in_executor(
            self._surroundings.pool,
            lambda: write_checkpoint(
                self.log, end_offset, snapshot, producers, surroundings=self._surroundings
            ),
        )

    async def clean(self) -> int:
        """Forget what is past its retention and drop the segments nobody needs any more. Returns
        the bytes freed."""
        freed_bytes = await self._drop_segments()
        if self.topic.is_queue:
            await self._expire()
        return freed_bytes

    async def compact(self) -> int:
        """Keep the last record of each key only, where the topic asks for it and it is worth it.
        Returns the bytes freed."""
        settings = settings_of(self.topic)
        if not settings.is_compacted or self.damage is not None or self.journal.failure is not None:
            return 0
        up_to = self.stream.ends.last_stable_offset
        try:
            return await self._compactor.run(
                settings, up_to=up_to, aborted=self.stream.aborted_below(up_to)
            )
        except Unreadable as unreadable:
            try:
                self.log.read(unreadable.offset, bytes_max=1)
            except Damaged as damage:
                self.found_damage(damage)
            raise

    async def _drop_segments(self) -> int:
        topic = self.topic
        wall_ms = self._clock.wall_ms()
        stream = settings_of(topic)
        cut = droppable(
            self.log.segments(),
            # A stream is finished with a record when retention says so, not when it was read.
            low_offset=self._cursor.low_offset() if topic.is_queue else self.start_offset,
            retention_ms=stream.retention_ms,
            retention_bytes=stream.retention_bytes,
            keep_after_ms=wall_ms - limits.DEDUP_WINDOW_MS if topic.is_fifo else None,
            now_ms=wall_ms,
        )
        if cut <= self.log.start_offset:
            return 0
        passed = await self._count_messages(self._cursor.head, cut)
        if self._cursor.head > cut:
            passed = 0
        outcome = self._cursor.trim(cut, passed=passed)
        flush = self._journal_events(outcome.events)
        if flush is not None:
            self.expired_count += passed
            self._meter.expired(passed)
            await flush.committed.wait()
        detached = self.log.detach_before(cut)
        self.stream.trim(self.start_offset)
        return await self._remove(detached)

    async def _remove(self, detached: Detached) -> int:
        return await self._loop.run_in_executor(self._surroundings.pool, detached.remove)

    async def _expire(self) -> None:
        for _ in range(EXPIRY_ROUNDS_MAX):
            now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
            if self._cursor.wants_feed:
                self._feed(now_ms, wall_ms)
            outcome = self._cursor.expire(
                retention_ms=self.topic.settings.retention_ms, now_ms=now_ms, wall_ms=wall_ms
            )
            flush = self._journal_events(outcome.events)
            if flush is not None:
                self.expired_count += outcome.reply
                self._meter.expired(outcome.reply)
                await flush.committed.wait()
            if not outcome.reply:
                return

    async def _count_messages(self, start: int, end: int) -> int:
        """Messages in [start, end), by batch headers, a little at a time."""
        count = 0
        while start < end:
            try:
                batches = self.log.read(start, bytes_max=limits.READ_BYTES_MAX, up_to=end)
            except Damaged:
                return count
            if not batches:
                return count
            for data in batches:
                header = parse_header(data)
                if not header.is_control:
                    # A compacted batch spans more offsets than it has messages.
                    span = header.next_offset - max(start, header.base_offset)
                    count += min(span, header.count)
                start = header.next_offset
            await asyncio.sleep(0)  # other requests go on
        return count

    def sync_soon(self) -> None:
        """Called every interval. ``never`` syncs sealed segments all the same: their files stay
        open until that is done."""
        fsync = self.journal.fsync
        if fsync is Fsync.INTERVAL or (fsync is Fsync.NEVER and self.log.has_unsynced_sealed):
            self.journal.sync_soon()

    async def close(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        await self._compactor.stop()
        if self.journal.failure is not None:
            self.log.close(clean=False)
            return
        await self.journal.settle()
        await self.checkpoint()
        await self._loop.run_in_executor(self._surroundings.pool, self.log.close)

    async def abandon(self) -> None:
        """Close without a trace: the topic is deleted and the folder is about to go."""
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        await self._compactor.stop()
        await self.journal.end(TopicNotFound(self.topic.name))
        self.log.close(clean=False)

    def count_dead(self, count: int) -> None:
        self.dead_count += count
        self._meter.dead_lettered(count)
