"""Restores the cursors of a partition from its log. The log has all state; a checkpoint only makes
it possible to begin the replay later, and an invalid checkpoint is ignored.

Lease events contain durations. The time since the event is subtracted, if the machine was not
restarted and its wall clock did not jump. Otherwise leases start over, so none becomes shorter.

A share has events in the log before it is in the catalog. A follower may therefore read events of a
share that it does not know yet, and its next checkpoint has no cursor for it. The checkpoint lists
such shares; when one of them turns out to exist, the whole log is replayed instead."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from penstock.broker.context.context import BrokerContext
from penstock.broker.partition.stream import count_messages, replay_producers
from penstock.cursor.bookmark import BOOKMARK_TYPE, Bookmarks
from penstock.cursor.leases import events
from penstock.cursor.leases.dedup import DedupTable, dedup_key
from penstock.cursor.leases.fifo import open_cursor, restore_cursor
from penstock.cursor.leases.lease import LeaseCursor
from penstock.cursor.producers import Producers
from penstock.log.log import Log
from penstock.model import limits
from penstock.model.errors import Damaged
from penstock.model.message import AckReason, Record
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.record.batch import BatchHeader, parse_header
from penstock.record.control import iter_control
from penstock.record.message import decode_batch
from penstock.record.opened import OpenedBatch
from penstock.record.record import records_blob

log_ = logging.getLogger(__name__)

CHECKPOINT_NAME = "cursor"
PRODUCERS_NAME = "producers"
CHECKPOINT_VERSION = 1
REPLAY_READ_BYTES = 4 * limits.MIB
# A share that is still not in the catalog a day after its last event was deleted.
UNKNOWN_SHARE_MS = 24 * 60 * limits.MINUTE_MS
ANY_SHARE = "*"  # in place of ids, if there are too many


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """The state of the lease cursors after all batches below ``offset``, as stored on disk."""

    version: int
    offset: int
    wall_ms: int
    snapshot: bytes
    shares: dict[str, bytes] = {}  # by share id
    begun_at: int = 0  # first offset that the cursors know about
    bookmarks: dict[str, int] = {}  # by reader
    # Ids of shares with events below ``offset`` that were not in the catalog, each with the time of
    # its last event.
    unknown_shares: dict[str, int] = {}

    def lacks(self, shares: Sequence[Topic]) -> bool:
        """Return whether a share that has no cursor here may have begun before this checkpoint."""
        unknown = self.unknown_shares
        missing = [each.topic_id for each in shares if each.topic_id not in self.shares]
        return any(ANY_SHARE in unknown or share_id in unknown for share_id in missing)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Checkpoint).decode


def checkpoint_writer(
    log: Log,
    cursor: LeaseCursor,
    shares: Iterable[tuple[str, LeaseCursor]],
    producers: bytes,
    *,
    offset: int,
    begun_at: int,
    bookmarks: Bookmarks,
    unknown_shares: Mapping[str, int],
    clock: Clock,
) -> Callable[[], None]:
    """Take a snapshot of the cursors, and return a function that writes it in any thread. Call that
    function only when all records below ``offset`` are committed."""
    now_ms = clock.mono_ms()
    snapshot = cursor.snapshot(now_ms=now_ms)
    of_shares = {share_id: one.snapshot(now_ms=now_ms) for share_id, one in shares}
    oldest_ms = clock.wall_ms() - UNKNOWN_SHARE_MS
    added = (
        bookmarks.offsets(),
        {each: at_ms for each, at_ms in unknown_shares.items() if at_ms > oldest_ms},
    )

    def write() -> None:
        fields: tuple[object, ...] = (offset, clock.wall_ms(), snapshot, of_shares, begun_at)
        if any(added):
            fields += added
        # In this order, because the replay continues at the offset of the cursors' checkpoint.
        log.write_checkpoint(PRODUCERS_NAME, producers)
        log.write_checkpoint(CHECKPOINT_NAME, _encode((CHECKPOINT_VERSION, *fields)))

    return write


def read_checkpoint(log: Log) -> Checkpoint | None:
    try:
        checkpoint = _decode(log.read_checkpoint(CHECKPOINT_NAME) or b"")
    except msgspec.MsgspecError:
        return None
    # The offset may be outside a log that lost its end or its first segments.
    is_within = log.start_offset <= checkpoint.offset <= log.end_offset
    return checkpoint if is_within and checkpoint.version == CHECKPOINT_VERSION else None


def forget_beyond(log: Log, offset: int) -> None:
    """Remove checkpoints beyond an offset. Call this before the log is truncated there."""
    checkpoint = read_checkpoint(log)
    if checkpoint is None or checkpoint.offset > offset:
        log.remove_checkpoint(CHECKPOINT_NAME)
        log.remove_checkpoint(PRODUCERS_NAME)


def origin_of(topic: Topic, index: int) -> bytes:
    """Return the bytes from which to generate ids for messages that were sent without an id."""
    return f"{topic.topic_id}-{index}".encode("ascii")


class Replay:
    """Restores the cursors from a checkpoint and the log after it. A follower calls ``advance``
    regularly, so that it can become leader quickly. ``finish`` makes the cursors usable."""

    def __init__(
        self, log: Log, topic: Topic, index: int, *, shares: Sequence[Topic], context: BrokerContext
    ) -> None:
        self._log = log
        self._context = context
        self.topic = topic
        self.index = index
        checkpoint = read_checkpoint(log)
        if checkpoint is not None and checkpoint.lacks(shares):
            log_.warning("replaying the whole log for a new share", extra={"topic": topic.name})
            checkpoint = None
        try:
            self._open_cursors(shares, checkpoint)
        except Damaged as error:
            log_.warning("checkpoint ignored", extra={"topic": topic.name, "reason": str(error)})
            checkpoint = None
            self._open_cursors(shares, None)
        self.bookmarks = Bookmarks(None if checkpoint is None else checkpoint.bookmarks)
        self.unknown_shares = {} if checkpoint is None else dict(checkpoint.unknown_shares)
        self._by_id = {bytes.fromhex(share.topic_id): found for share, found in self.shares}
        self._cursors = (self.cursor, *self._by_id.values())
        # A stream begins at its low watermark, as if earlier segments had been deleted.
        start = log.low_watermark if checkpoint is None else checkpoint.offset
        self._cursors_from = start
        self.begun_at = log.low_watermark if checkpoint is None else checkpoint.begun_at
        self._low_watermark = self.begun_at
        # Cursors whose head was set by an event or a checkpoint. Before, the head is unknown.
        self._counted: set[int] = set()
        if checkpoint is not None or not self.begun_at:
            self._counted.update(id(one) for one in self._cursors)
        # The checkpoint of producers is written before that of cursors, so it is at least as new.
        producers = self._open_producers(start)
        is_all_read = producers is None or checkpoint is None
        self.offset = log.start_offset if is_all_read else start
        self.producers = Producers() if producers is None else producers
        self.dedup = DedupTable()  # filled by ``finish``
        self.replayed_bytes = 0
        self.damage: Damaged | None = None
        self.clip(log.stored_low_watermark)

    def _open_cursors(self, shares: Sequence[Topic], checkpoint: Checkpoint | None) -> None:
        start = self._log.low_watermark if checkpoint is None else checkpoint.offset

        def open_one(snapshot: bytes | None, *, is_fifo: bool) -> LeaseCursor:
            now_ms = self._context.clock.mono_ms()
            if snapshot is not None and checkpoint is not None:
                elapsed_ms = self._elapsed(checkpoint.wall_ms)
                return restore_cursor(snapshot, now_ms=now_ms, elapsed_ms=elapsed_ms)
            cursor = open_cursor(is_fifo=is_fifo)
            cursor.apply(events.TrimEvent(start, 0), offset=start - 1, now_ms=now_ms)
            return cursor

        own = None if checkpoint is None else checkpoint.snapshot
        known = {} if checkpoint is None else checkpoint.shares
        self.cursor = open_one(own, is_fifo=self.topic.is_fifo)
        self.shares = [
            (share, open_one(known.get(share.topic_id), is_fifo=share.is_fifo)) for share in shares
        ]
        for share, cursor in self.shares:
            cursor.until = share.until_of(self.index)

    def _elapsed(self, since_ms: int) -> int:
        context = self._context
        since_ms = max(since_ms, context.elapsed_since_ms)
        return max(0, context.clock.wall_ms() - since_ms - context.grain_ms)

    def _open_producers(self, start: int) -> Producers | None:
        """Return the producers of the checkpoint, or None if the whole log must be replayed."""
        data = self._log.read_checkpoint(PRODUCERS_NAME)
        if data is None:
            return Producers() if start == self._log.start_offset else None
        try:
            found = Producers.restore(data, wall_ms=self._context.clock.wall_ms())
        except Damaged:
            return None
        return None if found.next_offset > self._log.end_offset else found

    @property
    def share_ids(self) -> frozenset[str]:
        return frozenset(share.topic_id for share, _ in self.shares)

    def advance(self, up_to: int, *, bytes_max: int | None = None) -> bool:
        """Replay up to ``up_to``, but only about ``bytes_max``. Returns False if more is left."""
        read = 0
        while self.offset < up_to and self.damage is None:
            try:
                batches = self._log.read(self.offset, bytes_max=REPLAY_READ_BYTES, up_to=up_to)
            except Damaged as damage:
                self.damage = damage
                break
            if not batches:
                break  # up_to is within a batch
            for batch in batches:
                self._apply(batch)
                read += len(batch)
            self.replayed_bytes += read
            if bytes_max is not None and read >= bytes_max:
                return self.offset >= up_to
        return True

    def _apply(self, batch: bytes) -> None:
        header = parse_header(batch)
        self.offset = header.next_offset
        producers = self.producers
        clock = self._context.clock
        if header.base_offset >= producers.next_offset:
            # The timestamps do not show when a producer was last active, so assume now: keeping a
            # producer for too long is better than storing a batch twice.
            replay_producers(producers, batch, header, clock.wall_ms())
        if header.next_offset <= self._cursors_from:
            return
        if header.is_control:
            self._apply_events(batch, header)
        elif header.count:  # a batch emptied by compaction may begin before the checkpoint
            now_ms = clock.mono_ms()
            base_offset = max(header.base_offset, self._cursors_from)
            count = min(header.count, header.next_offset - base_offset)
            for one in self._cursors:
                one.appended(base_offset, count, next_offset=header.next_offset, now_ms=now_ms)

    def _apply_events(self, batch: bytes, header: BatchHeader) -> None:
        now_ms = self._context.clock.mono_ms()
        elapsed_ms = self._elapsed(header.max_timestamp)
        for offset, number, value in iter_control(batch):
            target: LeaseCursor | None = self.cursor
            kind, data = number, memoryview(value)
            if events.is_shared_type(number):
                share_id, kind, data = events.split_shared(number, value)
                target = self._by_id.get(share_id)
                if target is None:  # deleted, or not in the catalog yet
                    self._note_unknown(share_id.hex(), header.max_timestamp)
            elif number == BOOKMARK_TYPE:
                self.bookmarks.apply(value)
                continue
            elif not events.is_event_type(number):
                continue  # transaction marker
            if target is not None:
                event = self._clip(target, events.decode(kind, data))
                target.apply(event, offset=offset, now_ms=now_ms, elapsed_ms=elapsed_ms)

    def _note_unknown(self, share_id: str, at_ms: int) -> None:
        unknown = self.unknown_shares
        unknown[share_id] = at_ms
        if len(unknown) > limits.UNKNOWN_SHARES_MAX:
            oldest_ms = at_ms - UNKNOWN_SHARE_MS
            recent = {each: then_ms for each, then_ms in unknown.items() if then_ms > oldest_ms}
            is_full = len(recent) > limits.UNKNOWN_SHARES_MAX
            self.unknown_shares = {ANY_SHARE: at_ms} if is_full else recent

    def clip(self, low_watermark: int) -> None:
        """Drop records below the low watermark from the lease cursors."""
        if low_watermark <= self._low_watermark:
            return
        self._low_watermark = low_watermark
        for cursor in self._cursors:
            if cursor.low_offset() < low_watermark:
                trim = events.TrimEvent(low_watermark, self._passed(cursor, low_watermark))
                if cursor.head < low_watermark:
                    self._counted.discard(id(cursor))
                now_ms = self._context.clock.mono_ms()
                cursor.apply(trim, offset=low_watermark, now_ms=now_ms)
        self._cursors_from = max(self._cursors_from, low_watermark)

    def _passed(self, cursor: LeaseCursor, low_watermark: int) -> int:
        end = max(self._cursors_from, self.offset)  # end of what the cursor has read
        if low_watermark >= end:
            return cursor.unseen
        if cursor.head >= self._log.start_offset:
            return self._count(cursor.head, min(low_watermark, cursor.until))
        # The segments are deleted, so count the remaining messages instead. For the stream's own
        # cursor the number is only displayed, so every remaining offset counts as a message.
        is_own = cursor is self.cursor
        until = min(end, cursor.until)
        left = end - low_watermark if is_own else self._count(low_watermark, until)
        return max(0, cursor.unseen - left)

    def _clip(self, cursor: LeaseCursor, event: events.Event) -> events.Event:
        """Remove records before the start of the replay from an event, and adjust its count."""
        start = max(self.begun_at, self._low_watermark)
        if not start:
            return event
        event = events.clipped(event, start)
        if isinstance(event, events.StartEvent) and event.start < start:
            self._counted.discard(id(cursor))
            return events.StartEvent(start, self._count(start, min(self.offset, cursor.until)))
        if id(cursor) in self._counted or not isinstance(
            event, events.LeaseEvent | events.TrimEvent
        ):
            return event
        head = event.head if isinstance(event, events.LeaseEvent) else event.start
        if head <= cursor.head:
            return event
        self._counted.add(id(cursor))
        passed = self._count(cursor.head, min(head, cursor.until))
        return msgspec.structs.replace(event, passed=passed)

    def _count(self, start: int, end: int) -> int:
        counting = count_messages(self._log, start, end, bytes_max=REPLAY_READ_BYTES)
        while True:
            try:
                next(counting)
            except StopIteration as ended:
                count: int = ended.value
                return count

    def checkpoint(self) -> Callable[[], None]:
        clock = self._context.clock
        return checkpoint_writer(
            self._log,
            self.cursor,
            ((share.topic_id, one) for share, one in self.shares),
            self.producers.snapshot(wall_ms=clock.wall_ms()),
            offset=self.offset,
            begun_at=self.begun_at,
            bookmarks=self.bookmarks,
            unknown_shares=self.unknown_shares,
            clock=clock,
        )

    def finish(self) -> "Replay":
        """Replay the remaining log and complete the cursors, which can be used afterwards."""
        self.advance(self._log.end_offset)
        self.clip(self._log.stored_low_watermark)
        origin = origin_of(self.topic, self.index)
        for found in self._cursors:
            self._hydrate(found, origin)
        if self.topic.is_fifo:
            self._remember_recent(origin)
        return self

    def _hydrate(self, cursor: LeaseCursor, origin: bytes) -> None:
        """Read message groups and due times from the records, because lease events lack them."""
        clock, log = self._context.clock, self._log
        records: list[Record] = []
        opened: OpenedBatch | None = None
        for offset in sorted(cursor.unhydrated()):
            if opened is None or offset >= opened.header.next_offset:
                try:
                    batch = log.read(offset, bytes_max=1)[0]
                except Damaged:
                    # Reads will report the damage; here the record only must not be delivered.
                    lost = events.AckEvent(AckReason.EXPIRED, (offset,))
                    cursor.apply(lost, offset=offset, now_ms=clock.mono_ms())
                    continue
                header = parse_header(batch)
                opened = OpenedBatch(header, records_blob(batch, header), origin=origin)
                for _ in opened.index():
                    pass  # this runs in a thread
            record = opened.find(offset)
            if record is not None:
                records.append(record)
        cursor.hydrate(records, now_ms=clock.mono_ms(), wall_ms=clock.wall_ms())

    def _remember_recent(self, origin: bytes) -> None:
        """Add the messages of the last five minutes to the deduplication table."""
        log, dedup = self._log, self.dedup
        offset = log.find_time(self._context.clock.wall_ms() - limits.DEDUP_WINDOW_MS)
        while offset < log.end_offset:
            try:
                batches = log.read(offset, bytes_max=REPLAY_READ_BYTES)
            except Damaged:
                return
            for batch in batches:
                header = parse_header(batch)
                if header.is_control:
                    for _, kind, value in iter_control(batch):
                        if kind == events.TRIM_TYPE:
                            event = events.decode(kind, value)
                            assert isinstance(event, events.TrimEvent)
                            dedup.forget_below(event.start)
                else:
                    for record in decode_batch(batch, origin=origin):
                        message = record.message
                        key = dedup_key(message, self.topic.dedup_scope)
                        if key is not None:
                            at_ms = record.appended_at_ms
                            dedup.remember(
                                key, record.offset, message.message_id, appended_at_ms=at_ms
                            )
                offset = header.next_offset
