"""From log to cursor. The state of a partition is a fold of its log: a checkpoint only says where
the fold may begin, and one that is missing, damaged or ahead of the log is left aside.

Leases carry durations. When this machine has been up since they were written and its wall clock has
not jumped, the time that has passed is taken off; otherwise they begin anew, so that a restart can
lengthen a lease but never shorten one.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.broker.stream import fold_producers
from penstock.broker.surroundings import Surroundings
from penstock.cursor.clip import clipped
from penstock.cursor.dedup import DedupTable, dedup_key
from penstock.cursor.events import (
    TRIM_TYPE,
    AckEvent,
    AckReason,
    Event,
    LeaseEvent,
    StartEvent,
    TrimEvent,
    decode,
    is_event_type,
    is_shared_type,
    split_shared,
)
from penstock.cursor.lease import LeaseCursor
from penstock.cursor.open import open_cursor, restore_cursor
from penstock.cursor.producers import Producers
from penstock.log.log import Log
from penstock.model import limits
from penstock.model.errors import Damaged
from penstock.model.message import Record
from penstock.model.ports import ProducerSeen
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


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """The cursor after every batch below ``offset``. To change the layout, raise the version: an
    unknown one is ignored and the log is replayed instead."""

    version: int
    offset: int
    wall_ms: int
    snapshot: bytes
    shares: dict[str, bytes] = {}  # by the share's id
    begun_at: int = 0  # where the fold began: of records before it nothing is known


@dataclass(frozen=True, slots=True)
class Restored:
    cursor: LeaseCursor
    shares: Sequence[tuple[Topic, LeaseCursor]]
    dedup: DedupTable
    producers: Producers
    replayed_bytes: int
    damage: Damaged | None
    begun_at: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Checkpoint).decode


def write_checkpoint(
    log: Log,
    offset: int,
    snapshot: bytes,
    shares: dict[str, bytes],
    producers: bytes,
    *,
    begun_at: int,
    surroundings: Surroundings,
) -> None:
    wall_ms = surroundings.clock.wall_ms()
    checkpoint = Checkpoint(CHECKPOINT_VERSION, offset, wall_ms, snapshot, shares, begun_at)
    # In this order: producers are read from the cursors' checkpoint on.
    log.write_checkpoint(PRODUCERS_NAME, producers)
    log.write_checkpoint(CHECKPOINT_NAME, _encode(checkpoint))


def read_checkpoint(log: Log) -> Checkpoint | None:
    data = log.read_checkpoint(CHECKPOINT_NAME)
    if data is None:
        return None
    try:
        checkpoint = _decode(data)
    except msgspec.MsgspecError:
        return None
    if checkpoint.version != CHECKPOINT_VERSION:
        return None
    if not log.start_offset <= checkpoint.offset <= log.end_offset:
        return None  # ahead of a log that lost its tail, or behind one that dropped it
    return checkpoint


def forget_beyond(log: Log, offset: int) -> None:
    """The log is about to be cut here: what was taken down of more than is left must not be found
    again. Safe in a thread."""
    checkpoint = read_checkpoint(log)
    if checkpoint is None or checkpoint.offset > offset:
        log.remove_checkpoint(CHECKPOINT_NAME)
        log.remove_checkpoint(PRODUCERS_NAME)


def origin_of(topic: Topic, index: int) -> bytes:
    """What message ids are derived from where a record brought none."""
    return f"{topic.topic_id}-{index}".encode("ascii")


def restore(
    log: Log, topic: Topic, index: int, *, shares: Sequence[Topic], surroundings: Surroundings
) -> Restored:
    fold = Fold(log, topic, index, shares=shares, surroundings=surroundings)
    fold.advance(log.end_offset)
    return fold.finish()


class Fold:
    """The views of a partition as they are after a part of its log. Begins at a checkpoint, goes on
    as far as it is told (a follower goes as far as is committed), and is finished when somebody
    leads with it."""

    def __init__(
        self,
        log: Log,
        topic: Topic,
        index: int,
        *,
        shares: Sequence[Topic],
        surroundings: Surroundings,
    ) -> None:
        self._log = log
        self._surroundings = surroundings
        self.topic = topic
        self.index = index
        checkpoint = read_checkpoint(log)
        cursors = _open_cursors(log, topic, shares, checkpoint, surroundings)
        if cursors is None:
            checkpoint = None
            cursors = _open_cursors(log, topic, shares, None, surroundings)
        assert cursors is not None
        self._cursor, self._shares = cursors
        self._by_id = {bytes.fromhex(share.topic_id): found for share, found in self._shares}
        self._cursors = (self._cursor, *self._by_id.values())
        # A stream begins at its low watermark, as if segments had been dropped up to there.
        start = log.low_watermark if checkpoint is None else checkpoint.offset
        self._cursors_from = start
        self.begun_at = log.low_watermark if checkpoint is None else checkpoint.begun_at
        self._low_watermark = self.begun_at
        # Whose head was moved by an event already: before the first, nobody knows where it was.
        self._counted: set[int] = set()
        if checkpoint is not None or not self.begun_at:
            self._counted.update(id(one) for one in self._cursors)
        # A snapshot of producers is written before the one of cursors: it knows at least as much.
        producers = self._open_producers(start)
        is_all_read = producers is None or checkpoint is None
        self.offset = log.start_offset if is_all_read else start
        self._producers = Producers() if producers is None else producers
        self.replayed_bytes = 0
        self.damage: Damaged | None = None
        self.clip(log.stored_low_watermark)

    def _open_producers(self, start: int) -> Producers | None:
        """None: everything has to be read for them."""
        data = self._log.read_checkpoint(PRODUCERS_NAME)
        if data is None:
            return Producers() if start == self._log.start_offset else None
        try:
            found = Producers.restore(data, wall_ms=self._surroundings.clock.wall_ms())
        except Damaged:
            return None
        return None if found.next_offset > self._log.end_offset else found

    @property
    def share_ids(self) -> frozenset[str]:
        return frozenset(share.topic_id for share, _ in self._shares)

    def advance(self, up_to: int, *, bytes_max: int | None = None) -> bool:
        """On to an offset, or a little on; whether it is there, or can never be."""
        read = 0
        while self.offset < up_to and self.damage is None:
            try:
                batches = self._log.read(self.offset, bytes_max=REPLAY_READ_BYTES, up_to=up_to)
            except Damaged as damage:
                self.damage = damage
                break
            if not batches:
                break  # up_to lies within a batch
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
        producers = self._producers
        clock = self._surroundings.clock
        if header.base_offset >= producers.next_offset:
            # Producers' own times say nothing of when they were last heard of: take them for just
            # heard, and remember them a day longer rather than store a batch twice.
            fold_producers(producers, batch, header, clock.wall_ms())
        if header.next_offset <= self._cursors_from:
            return
        if header.is_control:
            _replay_events(
                batch, header, self._cursor, self._by_id, self._surroundings, clip=self._clip
            )
        elif header.count:  # what compaction has emptied may begin before the checkpoint
            now_ms = clock.mono_ms()
            base_offset = max(header.base_offset, self._cursors_from)
            count = min(header.count, header.next_offset - base_offset)
            for one in self._cursors:
                one.appended(base_offset, count, next_offset=header.next_offset, now_ms=now_ms)

    def clip(self, low_watermark: int) -> None:
        """Forget what lies below: no event in the log of a stream says so. May read the log."""
        if low_watermark <= self._low_watermark:
            return
        self._low_watermark = low_watermark
        for cursor in self._cursors:
            if cursor.low_offset() < low_watermark:
                trim = TrimEvent(low_watermark, self._passed(cursor, low_watermark))
                if cursor.head < low_watermark:
                    self._counted.discard(id(cursor))
                now_ms = self._surroundings.clock.mono_ms()
                cursor.apply(trim, offset=low_watermark, now_ms=now_ms)
        self._cursors_from = max(self._cursors_from, low_watermark)

    def _passed(self, cursor: LeaseCursor, low_watermark: int) -> int:
        """Messages between the head and the low watermark."""
        end = max(self._cursors_from, self.offset)  # of what the cursor knows
        if low_watermark >= end:
            return cursor.unseen
        if cursor.head >= self._log.start_offset:
            return self._count(cursor.head, low_watermark)
        # Their segments are gone: what is left is counted instead. Of a stream itself the number is
        # only shown to people, and reading the whole log at a start is not worth it: there every
        # offset that is left counts as a message, so that no message is left out.
        is_own = cursor is self._cursor
        left = end - low_watermark if is_own else self._count(low_watermark, end)
        return max(0, cursor.unseen - left)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below the first transaction that is open as far as it has been read."""
        return self._producers.last_stable_offset(min(high_watermark, self.offset))

    def producers(self) -> Sequence[ProducerSeen]:
        return self._producers.seen(wall_ms=self._surroundings.clock.wall_ms())

    def aborted_below(self, offset: int) -> list[tuple[int, int, int]]:
        """As ``Stream.aborted_below``."""
        aborted = self._producers.aborted_between(self._log.start_offset, offset)
        return [(a.producer_id, a.first_offset, a.last_offset) for a in aborted]

    def forget_aborted(self, gone: Collection[tuple[int, int, int]]) -> None:
        """Compaction has left no record of these."""
        self._producers.forget_aborted(gone)

    def _clip(self, cursor: LeaseCursor, event: Event) -> Event:
        """Of what this fold has seen itself. What the first step of a head passes is counted here,
        for the event counted from somewhere before; from then on the events are right."""
        start = max(self.begun_at, self._low_watermark)
        if not start:
            return event
        event = clipped(event, start)
        if isinstance(event, StartEvent) and event.start < start:
            self._counted.discard(id(cursor))
            return StartEvent(start, self._count(start, self.offset))
        if id(cursor) in self._counted or not isinstance(event, LeaseEvent | TrimEvent):
            return event
        head = event.head if isinstance(event, LeaseEvent) else event.start
        if head <= cursor.head:
            return event
        self._counted.add(id(cursor))
        return msgspec.structs.replace(event, passed=self._count(cursor.head, head))

    def _count(self, start: int, end: int) -> int:
        """Messages in [start, end), by batch headers."""
        count = 0
        while start < end:
            try:
                batches = self._log.read(start, bytes_max=REPLAY_READ_BYTES)
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
        return count

    def checkpoint(self) -> Callable[[], None]:
        """Take down what is known; what is returned writes it, in any thread. Only of what is
        committed: the log may end differently for another leader."""
        clock, surroundings, log, offset = (
            self._surroundings.clock,
            self._surroundings,
            self._log,
            self.offset,
        )
        now_ms = clock.mono_ms()
        snapshot = self._cursor.snapshot(now_ms=now_ms)
        shares = {share.topic_id: one.snapshot(now_ms=now_ms) for share, one in self._shares}
        producers = self._producers.snapshot(wall_ms=clock.wall_ms())
        begun_at = self.begun_at
        return lambda: write_checkpoint(
            log, offset, snapshot, shares, producers, begun_at=begun_at, surroundings=surroundings
        )

    def finish(self) -> Restored:
        """What the events do not say is read from the records themselves."""
        log, surroundings = self._log, self._surroundings
        self.clip(log.stored_low_watermark)
        origin = origin_of(self.topic, self.index)
        for found in self._cursors:
            _hydrate(log, found, origin, surroundings)
        dedup = DedupTable()
        if self.topic.is_fifo:
            _remember_recent(log, dedup, self.topic, origin, surroundings)
        return Restored(
            self._cursor,
            self._shares,
            dedup,
            self._producers,
            self.replayed_bytes,
            self.damage,
            self.begun_at,
        )


def _open_cursors(
    log: Log,
    topic: Topic,
    shares: Sequence[Topic],
    checkpoint: Checkpoint | None,
    surroundings: Surroundings,
) -> tuple[LeaseCursor, list[tuple[Topic, LeaseCursor]]] | None:
    """The topic's own cursor and its shares' as they were at the checkpoint; None when it is
    damaged. A share that is not in it has begun behind it."""

    def open_one(snapshot: bytes | None, start: int, *, is_fifo: bool) -> LeaseCursor:
        now_ms = surroundings.clock.mono_ms()
        if snapshot is not None:
            assert checkpoint is not None
            elapsed_ms = _elapsed(checkpoint.wall_ms, surroundings)
            return restore_cursor(snapshot, now_ms=now_ms, elapsed_ms=elapsed_ms)
        cursor = open_cursor(is_fifo=is_fifo)
        # Whatever stood before the log's start is gone.
        cursor.apply(TrimEvent(start, 0), offset=start - 1, now_ms=now_ms)
        return cursor

    try:
        if checkpoint is None:
            start = log.low_watermark
            own = open_one(None, start, is_fifo=topic.is_fifo)
        else:
            own, start = open_one(checkpoint.snapshot, 0, is_fifo=topic.is_fifo), checkpoint.offset
        known = {} if checkpoint is None else checkpoint.shares
        of_shares = [
            (share, open_one(known.get(share.topic_id), start, is_fifo=False)) for share in shares
        ]
    except Damaged as error:
        log_.warning("checkpoint ignored", extra={"topic": topic.name, "reason": str(error)})
        return None
    return own, of_shares


def _elapsed(since_ms: int, surroundings: Surroundings) -> int:
    if not surroundings.is_elapsed_trusted:
        return 0
    return max(0, surroundings.clock.wall_ms() - since_ms - surroundings.grain_ms)


def _replay_events(
    batch: bytes,
    header: BatchHeader,
    cursor: LeaseCursor,
    shares: Mapping[bytes, LeaseCursor],
    surroundings: Surroundings,
    *,
    clip: Callable[[LeaseCursor, Event], Event],
) -> None:
    now_ms = surroundings.clock.mono_ms()
    elapsed_ms = _elapsed(header.max_timestamp, surroundings)
    for offset, number, value in iter_control(batch):
        whose: LeaseCursor | None = cursor
        kind, data = number, memoryview(value)
        if is_shared_type(number):
            share_id, kind, data = split_shared(number, value)
            whose = shares.get(share_id)  # None: that share is gone
        elif not is_event_type(number):
            continue  # the marker of a transaction
        if whose is not None:
            event = clip(whose, decode(kind, data))
            whose.apply(event, offset=offset, now_ms=now_ms, elapsed_ms=elapsed_ms)


def _hydrate(log: Log, cursor: LeaseCursor, origin: bytes, surroundings: Surroundings) -> None:
    """Give the cursor back what events do not carry: group and due time of records in its table."""
    clock = surroundings.clock
    records: list[Record] = []
    opened: OpenedBatch | None = None
    for offset in sorted(cursor.unhydrated()):
        if opened is None or offset >= opened.header.next_offset:
            try:
                batch = log.read(offset, bytes_max=1)[0]
            except Damaged:
                # Reported by whoever reads it; here it only must not be given out.
                lost = AckEvent(AckReason.EXPIRED, (offset,))
                cursor.apply(lost, offset=offset, now_ms=clock.mono_ms())
                continue
            header = parse_header(batch)
            opened = OpenedBatch(header, records_blob(batch, header), origin=origin)
            for _ in opened.index():
                pass  # in a thread of its own
        record = opened.find(offset)
        if record is not None:
            records.append(record)
    cursor.hydrate(records, now_ms=clock.mono_ms(), wall_ms=clock.wall_ms())


def _remember_recent(
    log: Log, dedup: DedupTable, topic: Topic, origin: bytes, surroundings: Surroundings
) -> None:
    """Deduplication looks back five minutes; the cleaner keeps that much of a FIFO log."""
    offset = log.find_time(surroundings.clock.wall_ms() - limits.DEDUP_WINDOW_MS)
    while offset < log.end_offset:
        try:
            batches = log.read(offset, bytes_max=REPLAY_READ_BYTES)
        except Damaged:
            return
        for batch in batches:
            header = parse_header(batch)
            if header.is_control:
                _forget_purged(dedup, batch)
            else:
                for record in decode_batch(batch, origin=origin):
                    message = record.message
                    key = dedup_key(message, topic.dedup_scope)
                    if key is not None:
                        dedup.remember(
                            key,
                            record.offset,
                            message.message_id,
                            appended_at_ms=record.appended_at_ms,
                        )
            offset = header.next_offset


def _forget_purged(dedup: DedupTable, batch: bytes) -> None:
    for _, kind, value in iter_control(batch):
        if kind == TRIM_TYPE:
            event = decode(kind, value)
            assert isinstance(event, TrimEvent)
            dedup.forget_below(event.start)
