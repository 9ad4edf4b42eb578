"""The leases of a queue or a share on one partition. ``Leases`` passes records to the lease cursor,
serves waiting receives and counts messages. In the log, events of a share carry the share's id.

Every call has three steps. The cursor decides in memory. The journal appends the resulting event in
the same iteration of the event loop. The caller waits before it replies: for a lease of a standard
queue until the event is written (a lost lease only causes another delivery), for a lease of a FIFO
queue and any ack, purge or extend until the event is committed."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.context.timers import Alarm
from penstock.broker.leases.committed_records import wants_committed
from penstock.broker.leases.record_reader import Opening, Place, Reading, RecordReader
from penstock.broker.leases.waits import LeaseResult, Waits
from penstock.broker.storage.flush import Flush
from penstock.broker.storage.journal import Journal
from penstock.cursor.leases.events import Event, Pick, encode, encode_shared
from penstock.cursor.leases.fifo import FifoCursor
from penstock.cursor.leases.lease import LeaseCursor
from penstock.cursor.leases.obstacles import QueueTerms
from penstock.cursor.leases.standard import StandardCursor
from penstock.cursor.producers import Producers
from penstock.model import limits
from penstock.model.errors import Damaged
from penstock.model.message import AckReason, Claim, Delivery, Message, Record
from penstock.model.ports import LeaseRequest, Peeked
from penstock.model.topic import Kind, Obstacles, Topic
from penstock.net.slices import in_slices
from penstock.record.batch import BatchHeader

EXPIRY_ROUNDS_MAX = 64  # rounds per cleaning; the next cleaning continues
FED_PER_TURN_MAX = limits.WINDOW_RECORDS_MAX  # records read per attempt to lease


class _AppendedBatch(NamedTuple):
    """A batch that was just appended, whose messages need not be read from the log."""

    previous_end: int  # only events are between this offset and ``base_offset``
    base_offset: int
    next_offset: int
    now_ms: int
    messages: Sequence[Message]


class Leases:
    def __init__(
        self, topic: Topic, place: Place, journal: Journal, cursor: LeaseCursor, waits: Waits
    ) -> None:
        self.topic = topic  # the queue or the share
        self.reader = RecordReader(topic, place)
        self.index = place.index
        self.waits = waits
        self.received_count = self.acked_count = 0
        self.dead_count = self.expired_count = 0
        self.cursor = cursor
        self._log = place.log
        self._journal = journal
        self._context = place.context
        self._clock = place.context.clock
        self._on_damage = place.on_damage
        self._share_id = bytes.fromhex(topic.topic_id) if topic.is_share else None
        self._hooks = place.context.share_hooks
        # Of the partition, for shares that deliver no records of open or aborted transactions.
        self.producers: Callable[[], Producers] | None = None
        self._loop = asyncio.get_running_loop()
        self._fresh: deque[_AppendedBatch] = deque()
        self._fresh_count = 0
        self._messages_end = place.log.end_offset  # offset after the last batch of messages
        self._oldest: tuple[int, int] | None = None  # low offset, and its record's send time
        self._listeners: set[Callable[[], None]] = set()
        self._alarm = Alarm(self._clock, self.wake)
        self._is_wake_due = False

    def appended(
        self, base_offset: int, next_offset: int, now_ms: int, messages: Sequence[Message]
    ) -> None:
        if self.topic.kind is Kind.FIFO:
            delay_ms = self.topic.settings.delay_ms
            delays = [(base_offset + i, delay_ms) for i in range(len(messages))] if delay_ms else ()
        else:
            delays = [
                (base_offset + i, message.delay_ms)
                for i, message in enumerate(messages)
                if message.delay_ms
            ]
        self.cursor.appended(
            base_offset,
            len(messages),
            next_offset=next_offset,
            delays=delays,
            appended_at_ms=now_ms,
            now_ms=self._clock.mono_ms(),
        )
        previous_end, self._messages_end = self._messages_end, next_offset
        if self._fresh_count < limits.WINDOW_RECORDS_MAX:
            self._fresh.append(
                _AppendedBatch(previous_end, base_offset, next_offset, now_ms, messages)
            )
            self._fresh_count += len(messages)

    def batch_appended(self, header: BatchHeader) -> None:
        """Add a producer's batch to the cursor without decoding it."""
        self.cursor.appended(
            header.base_offset,
            header.count,
            next_offset=header.next_offset,
            now_ms=self._clock.mono_ms(),
        )
        self._messages_end = header.next_offset

    def replace_cursor(self, cursor: LeaseCursor) -> None:
        self.cursor = cursor
        self._forget_ahead()
        self._messages_end = self._log.end_offset

    def _forget_ahead(self) -> None:
        self._fresh.clear()
        self._fresh_count = 0
        self.reader.forget()

    @property
    def retention_ms(self) -> int:
        # A share keeps a record as long as its source topic does.
        return limits.FOREVER_MS if self.topic.is_share else self.topic.settings.retention_ms

    def lease(
        self,
        request: LeaseRequest,
        *,
        attempts_max: int | None,
        in_flight_max: int,
        up_to: int = limits.OFFSET_MAX,
    ) -> LeaseResult:
        """Lease up to ``request.count`` records, and read no records from ``up_to`` on. Before the
        reply, the caller awaits ``flush`` and, if set, ``finish`` of the result."""
        if request.group_max and isinstance(self.cursor, FifoCursor):
            every = msgspec.structs.replace(request, group_max=0)
            with self.cursor.only_if(lambda _: True, group_max=request.group_max):
                return self.lease(
                    every, attempts_max=attempts_max, in_flight_max=in_flight_max, up_to=up_to
                )
        queue_delay_ms = self.topic.settings.delay_ms
        retention_ms = self.retention_ms
        now_ms = self._clock.mono_ms()
        wall_ms = self._clock.wall_ms()
        result = LeaseResult([], [])
        deliveries = result.deliveries
        is_dry = False
        fed = again_bytes = 0
        while True:
            outcome = self.cursor.lease(
                count=request.count - len(deliveries),
                lease_ms=request.lease_ms + self._context.grain_ms if request.lease_ms else 0,
                attempts_max=attempts_max,
                retention_ms=retention_ms,
                queue_delay_ms=queue_delay_ms,
                in_flight_max=in_flight_max,
                attempt_id=request.attempt_id,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
            if outcome.event is not None:
                result.flush = self._journal_event(outcome.event)
            if outcome.picks:
                again_bytes = self._read_picks(result, outcome.picks, again_bytes)
            result.dead.extend(outcome.dead)
            if outcome.expired:
                self._count_expired(outcome.expired)
            if not outcome.needs_feed or is_dry or result.late or len(deliveries) >= request.count:
                break
            if fed >= FED_PER_TURN_MAX:
                result.is_cut = True
                break
            more = self._feed(now_ms, wall_ms, up_to=up_to)
            fed += more
            if not more:
                if self.reader.is_later:
                    result.is_cut = True
                    break
                # The end of the log is reached: the cursor decides with the records it has.
                self.cursor.feed((), self.cursor.scan_from, now_ms=now_ms, wall_ms=wall_ms)
                is_dry = True
        result.is_over_limit = outcome.is_over_limit
        self.received_count += len(deliveries)
        return result

    def next_offset(self, *, up_to: int) -> int | Reading | None:
        """Return the first offset below ``up_to`` that can be leased. Only for standard queues."""
        assert isinstance(self.cursor, StandardCursor)
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        found = self.cursor.next_offset(now_ms=now_ms)
        if found is None:
            if not self._feed(now_ms, wall_ms, up_to=up_to):
                return Reading.LATER if self.reader.is_later else None
            found = self.cursor.next_offset(now_ms=now_ms)
            if found is None:
                return Reading.LATER
        return found if found < up_to else None

    def _read_picks(self, result: LeaseResult, picks: Sequence[Pick], again_bytes: int) -> int:
        """Add leased records to ``result``. Returns ``again_bytes`` plus the bytes read here."""
        for pick in picks:
            record: Record | Reading | None = pick.record
            if record is None:
                record = Reading.LATER
                if again_bytes < limits.WINDOW_BYTES_MAX:
                    record = self.reader.read(pick.offset)
            if record is Reading.LATER:
                result.late.append(pick)
                result.finish = self.finish
            elif record is not None:
                result.deliveries.append(self._delivery(pick, record))
                if pick.record is None:
                    again_bytes += len(record.message.body)
        return again_bytes

    async def finish(self, result: LeaseResult) -> None:
        late, result.late = result.late, []
        for pick in late:
            await asyncio.sleep(0)  # decoding a large record takes time
            record = await self.reader.read_late(pick.offset)
            if record is not None:
                result.deliveries.append(self._delivery(pick, record))
                self.received_count += 1
        result.deliveries.sort(key=lambda delivery: delivery.record.offset)  # keep groups in order

    def _delivery(self, pick: Pick, record: Record) -> Delivery:
        return Delivery(
            partition=self.index,
            record=record,
            lease_seq=pick.lease_seq,
            attempt=pick.attempt + record.message.attempts,
            first_leased_at_ms=pick.first_leased_at_ms,
        )

    def _feed(self, now_ms: int, wall_ms: int, *, up_to: int = limits.OFFSET_MAX) -> int:
        """Pass records from the log to the cursor. Returns approximately how many were passed."""
        cursor = self.cursor
        scan_from = cursor.scan_from
        high_watermark = self._journal.high_watermark
        if up_to < high_watermark:
            high_watermark = up_to
        if self._share_id is not None:
            if scan_from >= cursor.until:
                return 0
            find_filter = self._hooks.find_filter
            if find_filter is not None:
                cursor.wants = find_filter(self.topic, self.index)
            if self.producers is not None:
                producers = self.producers()
                stable = producers.last_stable_offset(self._journal.high_watermark)
                high_watermark = min(high_watermark, stable)
                found = producers.aborted_between(scan_from, high_watermark)
                wants = None if find_filter is None else cursor.wants
                cursor.wants = wants_committed(found, self.reader.log, wants)
        fresh = self._fresh
        while fresh and fresh[0].base_offset < scan_from:
            self._fresh_count -= len(fresh.popleft().messages)
        if scan_from >= high_watermark or scan_from >= self._messages_end:
            return 0
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
            return len(records) if cursor.wants is None else self._judged(now_ms, wall_ms)
        reader = self.reader
        ahead = reader.ahead
        while ahead and ahead[0].offset < scan_from:
            ahead.popleft()
        is_read = not ahead
        if is_read and not reader.read_ahead(scan_from, high_watermark):
            return 0
        cursor.feed(ahead, reader.ahead_end, now_ms=now_ms, wall_ms=wall_ms)
        if cursor.wants is not None:
            return self._judged(now_ms, wall_ms)
        return FED_PER_TURN_MAX if is_read else len(ahead)

    def _judged(self, now_ms: int, wall_ms: int) -> int:
        """Move the cursor past many unwanted records. A filter may be slow: one read per turn."""
        if self.cursor.unwanted_tail >= limits.UNWANTED_MAX:
            self._journal_events(self.cursor.pass_unwanted(now_ms=now_ms, wall_ms=wall_ms).events)
        return FED_PER_TURN_MAX

    async def ack(
        self,
        claims: Sequence[Claim],
        *,
        reason: AckReason = AckReason.ACKED,
        is_strict: bool = False,
    ) -> Sequence[Exception | None]:
        now_ms = self._clock.mono_ms()
        outcome = self.cursor.ack(claims, now_ms=now_ms, reason=reason, is_strict=is_strict)
        flush = self._journal_events(outcome.events)
        if self.cursor.is_fifo:
            self.wake()  # the ack may unlock a message group
        if flush is not None:
            await flush.committed.wait()
        elif self._journal.high_watermark < self._log.end_offset:
            # The message was acked before, perhaps by an ack that is not committed yet.
            await self._journal.join().committed.wait()
        if reason is AckReason.ACKED:
            self.acked_count += sum(result is None for result in outcome.reply)
        return outcome.reply

    async def extend(
        self, claims: Sequence[tuple[Claim, int]], *, is_strict: bool = False
    ) -> Sequence[Exception | None]:
        grain_ms = self._context.grain_ms
        rounded = [
            (claim, lease_ms + grain_ms if 0 < lease_ms < limits.LEASE_MS_MAX else lease_ms)
            for claim, lease_ms in claims
        ]
        outcome = self.cursor.extend(rounded, now_ms=self._clock.mono_ms(), is_strict=is_strict)
        flush = self._journal_events(outcome.events)
        self.wake()  # released records are available; any change may move the next wake-up
        if flush is not None:
            await flush.committed.wait()
        return outcome.reply

    async def purge(self) -> None:
        self._journal.flush()  # messages sent before the purge are purged too
        await self.settled(self.cursor.purge(end_offset=self._log.end_offset).events)

    async def start(self, offset: int, *, backlog: int) -> None:
        """Move the cursor to ``offset``. ``backlog`` is the number of messages from there on."""
        self._forget_ahead()
        self._oldest = None
        flush = self._journal_events(self.cursor.start(offset, backlog=backlog).events)
        assert flush is not None
        # Written at once, because a replay resets the count to ``backlog`` where the event is: it
        # must not come after messages and leases of this turn.
        self._journal.flush()
        self.wake()
        await flush.committed.wait()

    def clip(self, start_offset: int, *, passed: int, is_expiry: bool) -> Sequence[Event]:
        """Drop records below an offset from the cursor. Returns the events to write to the log."""
        scan_from = self.cursor.scan_from
        outcome = self.cursor.trim(start_offset, passed=passed)
        if self.cursor.scan_from != scan_from:
            self._forget_ahead()  # it may also have moved back, to judge records again
        if outcome.reply and is_expiry:
            self._count_expired(outcome.reply)
            if self._share_id is not None and self._hooks.lost is not None:
                self._hooks.lost(self.topic, self.index, outcome.reply)
        return outcome.events

    async def settled(self, events: Sequence[Event]) -> None:
        flush = self._journal_events(events)
        if flush is not None:
            await flush.committed.wait()

    def _journal_events(self, events: Sequence[Event]) -> Flush | None:
        flush = None
        for event in events:
            flush = self._journal_event(event)
        return flush

    def _journal_event(self, event: Event) -> Flush:
        share_id = self._share_id
        return self._journal.add_event(
            encode(event) if share_id is None else encode_shared(share_id, event)
        )

    def wake(self) -> None:
        """Serve waiting receives, and set the timer for when the next lease or delay ends."""
        if self._listeners:
            # Events of other shares advance the log too. With many shares, most wakes are theirs.
            if self.counts()[0]:
                for listener in tuple(self._listeners):
                    listener()
        elif not self.waits:
            return
        if self.waits.serve(self.lease_for_wait):
            self.wake_later()
        self.arm()

    def wake_later(self) -> None:
        if self._is_wake_due:
            return
        self._is_wake_due = True
        opening = self.reader.opening
        if opening is None:
            self._loop.call_soon(self._wake_again)
        else:
            opening.add_done_callback(self._wake_again)

    def _wake_again(self, _opening: Opening | None = None) -> None:
        self._is_wake_due = False
        self.wake()

    lease_for_wait: Callable[[LeaseRequest], LeaseResult]  # set by the queue, with its limits

    def on_available(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.add(listener)
        self.arm()
        return lambda: self._listeners.discard(listener)

    def arm(self) -> None:
        """Set the timer for when the next lease or delay ends, if a client is waiting."""
        if self.waits or self._listeners:
            self._alarm.set(self.cursor.next_wake_ms())

    def disarm(self) -> None:
        self._alarm.clear()
        self.reader.close()

    def counts(self) -> tuple[int, int, int]:
        delay_ms = self.topic.settings.delay_ms
        stats = self.cursor.stats(now_ms=self._clock.mono_ms(), queue_delay_ms=delay_ms)
        return stats.visible, stats.in_flight, stats.delayed

    @property
    def in_flight(self) -> int:
        return self.cursor.stats(now_ms=self._clock.mono_ms()).in_flight

    def oldest_sent_at_ms(self) -> int | None:
        """Return when the oldest unacked record was sent, or None if all records are acked."""
        if not any(self.counts()):
            return None
        low = self.cursor.low_offset()
        if self._oldest is None or self._oldest[0] != low:
            try:
                peeked = self.reader.peek_first(low, self._journal.high_watermark, self._peeked)
            except Damaged as damage:
                self._on_damage(damage)
                return None
            if peeked is None:
                return None
            # Cached because dashboards read it often. The low offset changes only with acks.
            self._oldest = low, peeked.record.sent_at_ms
        return self._oldest[1]

    async def peek(self, *, start: int, count: int) -> tuple[list[Peeked], int]:
        """Return unacked records, and the offset at which the next peek can continue."""
        return await self.reader.peek(start, self._journal.high_watermark, count, self._peeked)

    def _peeked(self, record: Record) -> Peeked | None:
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        delay_ms = self.topic.settings.delay_ms
        seen = self.cursor.state_of(record, now_ms=now_ms, wall_ms=wall_ms, queue_delay_ms=delay_ms)
        if seen is None:
            return None
        attempts = self.cursor.attempts_of(record.offset) + record.message.attempts
        until_ms = None if seen.until_ms is None else wall_ms + seen.until_ms - now_ms
        return Peeked(self.index, record, seen.state, attempts, until_ms, seen.blocked_by)

    async def obstacles(self, *, attempts_max: int | None) -> Obstacles:
        now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
        fed = 0
        while self.cursor.wants_feed and fed < FED_PER_TURN_MAX:
            more = self._feed(now_ms, wall_ms)
            fed += more
            if not more:
                break
        delay_ms = self.topic.settings.delay_ms
        terms = QueueTerms(self.index, attempts_max, self.retention_ms, delay_ms, now_ms, wall_ms)
        found = await in_slices(self.cursor.find_obstacles(terms))
        uncommitted = max(0, self._messages_end - self._journal.high_watermark)
        return msgspec.structs.replace(found, uncommitted=uncommitted)

    async def expire(self) -> None:
        """Drop records that are older than the retention, even if no client receives."""
        for _ in range(EXPIRY_ROUNDS_MAX):
            now_ms, wall_ms = self._clock.mono_ms(), self._clock.wall_ms()
            if self.cursor.wants_feed and not self._feed(now_ms, wall_ms) and self.reader.is_later:
                await self.reader.ready()
                continue
            kept_ms = self.retention_ms
            outcome = self.cursor.expire(retention_ms=kept_ms, now_ms=now_ms, wall_ms=wall_ms)
            if outcome.events:
                self._count_expired(outcome.reply)
                await self.settled(outcome.events)
            if not outcome.reply:
                return

    def _count_expired(self, count: int) -> None:
        self.expired_count += count
        self._context.meter.messages_expired += count

    def count_dead(self, count: int) -> None:
        self.dead_count += count
        self._context.meter.messages_dead_lettered += count
