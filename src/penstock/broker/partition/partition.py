"""One partition with its log, the journal that appends to it, and the state that is restored from
the log: the stream for Kafka clients, and the lease cursors of the queue and of each share."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from penstock.broker.context.context import BrokerContext
from penstock.broker.leases.leases import Leases
from penstock.broker.leases.record_reader import Place
from penstock.broker.leases.waits import Waits
from penstock.broker.partition.replay import Replay, checkpoint_writer, origin_of
from penstock.broker.partition.stream import LowWatermark, Stream
from penstock.broker.storage.compaction import Compactor
from penstock.broker.storage.flush import Flush
from penstock.broker.storage.journal import Journal, Replication
from penstock.cursor.bookmark import REMOVED
from penstock.cursor.leases.dedup import dedup_key
from penstock.cursor.leases.fifo import open_cursor
from penstock.cursor.leases.lease import LeaseCursor
from penstock.log.log import Detached, Log
from penstock.log.retention import droppable
from penstock.log.storage.checkpoint import Damage, DamagedRange
from penstock.model import limits
from penstock.model.calls import Fetch
from penstock.model.errors import (
    Damaged,
    OffsetOutOfRange,
    Overloaded,
    PenstockError,
    TopicNotFound,
)
from penstock.model.message import Appended, Message
from penstock.model.names import split_share
from penstock.model.ports import EARLIEST, LATEST, BatchAppended, Fetched, StreamEnds
from penstock.model.stream import settings_of
from penstock.model.subscription import owner_of_share
from penstock.model.topic import Fsync, Kind, Topic
from penstock.record.batch import BatchHeader

log_ = logging.getLogger(__name__)

CHECKPOINT_BYTES = 16 * limits.MIB  # maximum size of the log that is replayed at the start


class Partition:
    def __init__(
        self,
        topic: Topic,
        index: int,
        log: Log,
        restored: Replay,
        waits: Waits,
        context: BrokerContext,
        *,
        replication: Replication | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.damage: Damaged | None = None
        self.sent_count = 0
        self._place = Place(index, log, context, origin_of(topic, index), self.found_damage)
        self._context = context
        self._clock = context.clock
        self._meter = context.meter
        self._loop = asyncio.get_running_loop()
        self._dedup = restored.dedup
        self._begun_at = restored.begun_at
        self._bookmarks = restored.bookmarks
        self._unknown_shares = restored.unknown_shares
        self._checkpoint_bytes = -restored.replayed_bytes  # replayed since the checkpoint
        self.journal = Journal(
            log,
            topic,
            index,
            context,
            on_appended=self._appended,
            on_batch=self._batch_appended,
            on_high_watermark=self._advanced,
            on_lost=self._reload,
            replication=replication,
        )
        self._replication = replication
        self.stream = Stream(log, self.journal, restored.producers, context.clock)
        self.leases = self._new_leases(topic, restored.cursor, waits)
        # By share id. Mostly empty; every append iterates over it.
        self.shares: dict[str, Leases] = {
            share.topic_id: self._new_leases(share, cursor, Waits())
            for share, cursor in restored.shares
        }
        self._low_watermark = LowWatermark(
            log,
            self.journal,
            context.pool,
            self._views,
            replication=replication,
            is_queue=lambda: self.topic.is_queue,
        )
        self._compactor = Compactor(log, context, on_damage=self.found_damage)
        if restored.damage is not None:
            self.found_damage(restored.damage)
        self._report_damage()

    def _new_leases(self, topic: Topic, cursor: LeaseCursor, waits: Waits) -> Leases:
        leases = Leases(topic, self._place, self.journal, cursor, waits)
        _, group = split_share(topic.name) or ("", "")
        if owner_of_share(group) is not None:
            leases.producers = lambda: self.stream.producers
        return leases

    def _views(self) -> Iterable[Leases]:
        yield self.leases
        yield from self.shares.values()

    async def append(self, messages: Sequence[Message]) -> Sequence[Appended]:
        self._check_accepts()
        journal = self.journal
        if self.topic.kind is Kind.FIFO or self.topic.kind is Kind.FIFO_STREAM:
            # Before the first message is added, so that a call is rejected as a whole.
            self._dedup.check_room(len(messages), wall_ms=self._clock.wall_ms())
        results: list[Appended] = []
        flush: Flush | None = None
        first_end = 0
        for message in messages:
            offset = journal.next_offset
            key = dedup_key(message, self.topic.dedup_scope)
            if key is not None:
                wall_ms = self._clock.wall_ms()
                first = self._dedup.find(key, wall_ms=wall_ms)
                if first is not None:
                    self._meter.dedup_hits += 1
                    first_end = max(first_end, first[0] + 1)
                    results.append(Appended(self.index, first[0], first[1], is_duplicate=True))
                    continue
                self._dedup.remember(key, offset, message.message_id, appended_at_ms=wall_ms)
            flush = journal.add_message(message)
            results.append(Appended(self.index, offset, message.message_id))
        if flush is not None:
            await flush.sent.wait()
        elif first_end > journal.high_watermark:
            # The first message with this deduplication id is not committed yet: wait for it, and
            # fail if its append fails.
            await journal.join().sent.wait()
        return results

    def _check_accepts(self) -> None:
        if self.damage is not None:
            raise Overloaded(f"The partition is damaged and accepts no messages: {self.damage}")
        if self._replication is not None:
            self._replication.check_accepts()

    def _appended(
        self, base_offset: int, next_offset: int, now_ms: int, messages: Sequence[Message]
    ) -> None:
        self.sent_count += len(messages)
        self.leases.appended(base_offset, next_offset, now_ms, messages)
        if self.shares:
            for share in self.shares.values():
                share.appended(base_offset, next_offset, now_ms, messages)

    def _batch_appended(self, header: BatchHeader) -> None:
        if header.is_control:
            return  # transaction markers are not messages
        self.sent_count += header.count
        self.leases.batch_appended(header)
        if self.shares:
            for share in self.shares.values():
                share.batch_appended(header)

    async def purge(self) -> None:
        """Delete all messages of the queue. Shares of the topic keep their messages."""
        self.journal.flush()  # messages sent before the purge are purged too
        self._dedup.forget_below(self.log.end_offset)
        await self.leases.purge()

    def note_damage(self, found: Sequence[Damage]) -> None:
        self.log.note_damage(found)
        self._report_damage()

    def _report_damage(self) -> None:
        low = self.low_offset
        for damage in self.log.damage:
            if damage.next_offset > low:
                self.found_damage(DamagedRange(self.log.folder, damage))

    def found_damage(self, damage: Damaged) -> None:
        if self.damage is None:
            self.damage = damage
            fields = {"topic": self.topic.name, "partition": self.index, "reason": str(damage)}
            log_.error("partition damaged", extra=fields)
            if self._replication is not None:
                self._replication.damaged(damage)

    async def append_batches(
        self, batches: Sequence[bytes | memoryview], *, acks: int, is_append_time: bool
    ) -> BatchAppended:
        self._check_accepts()
        appended, flush = self.stream.append(batches, is_append_time=is_append_time)
        if flush is not None and acks != 0:
            await flush.committed.wait()
        return appended

    def ends(self) -> StreamEnds:
        journal, replication = self.journal, self._replication
        high_watermark = journal.high_watermark
        return StreamEnds(
            self.start_offset,
            high_watermark,
            self.stream.producers.last_stable_offset(high_watermark),
            journal.leader_epoch,
            replication is None or replication.is_settled,
        )

    @property
    def start_offset(self) -> int:
        if self.topic.is_queue:
            return self.log.low_watermark
        head = min(self.leases.cursor.head, self.journal.high_watermark)
        return max(self.log.low_watermark, head)

    def fetch(self, call: Fetch) -> Fetched:
        ends, offset = self.ends(), call.offset
        if ends.high_watermark < offset <= self.log.end_offset and self._replication is not None:
            # An earlier leader may have committed this offset; it will be committed here too (R19).
            return Fetched(ends)
        if not ends.start_offset <= offset <= ends.high_watermark:
            raise OffsetOutOfRange(offset, ends.start_offset, ends.high_watermark)
        try:
            return self.stream.fetch(call, ends)
        except Damaged as damage:
            self.found_damage(damage)
            raise

    async def find_time(self, timestamp_ms: int) -> tuple[int, int]:
        start_offset, tenant = self.start_offset, self.topic.account
        return await self.stream.find_time(timestamp_ms, start_offset=start_offset, tenant=tenant)

    async def delete_records(self, before: int) -> int:
        """Hide the records below an offset permanently. Their segments are removed later."""
        end = max(self.start_offset, self.journal.high_watermark)  # may lag on a new leader
        before = end if before < 0 else before
        if not self.start_offset <= before <= end:
            raise OffsetOutOfRange(before, self.start_offset, end)
        is_for_others = await self._low_watermark.move(before, is_expiry=False)
        self.stream.trim(self.start_offset)
        if is_for_others and self._replication is not None:
            await self._replication.low_watermark_held(before)  # on other replicas (R25)
        await self._remove(self.log.detach_before(before))
        return self.start_offset

    async def begin_share(self, share: Topic, start: int) -> None:
        """Add a share that is not in the catalog yet, and write its start offset to the log."""
        cursor = open_cursor(is_fifo=share.is_fifo)
        cursor.until = share.until_of(self.index)
        end = self.log.end_offset
        cursor.appended(end, 0, next_offset=end, now_ms=self._clock.mono_ms())
        leases = self._new_leases(share, cursor, Waits())
        self.shares[share.topic_id] = leases
        await self.restart_share(leases, start)

    async def restart_share(self, leases: Leases, start: int) -> None:
        """Move a share to offset ``start``. All records from there on are delivered again."""
        self.journal.flush()  # messages sent before are in the log now
        end = self.log.end_offset
        if start == LATEST:
            start = end
        elif start == EARLIEST:
            start = self.start_offset
        until = leases.cursor.until
        start = min(max(start, self.start_offset), end, until)
        sent_before = self.sent_count
        backlog = await self._low_watermark.count(start, min(end, until))
        self.journal.flush()
        if until > end:
            backlog += self.sent_count - sent_before
        await leases.start(start, backlog=backlog)

    def end_share(self, share_id: str) -> None:
        leases = self.shares.pop(share_id, None)
        if leases is not None:
            leases.disarm()

    def bookmark_of(self, reader: str) -> int:
        offset = self._bookmarks.find(reader)
        return self.start_offset if offset is None else max(offset, self.start_offset)

    def bookmarks(self) -> Mapping[str, int]:
        return self._bookmarks.offsets()

    async def move_bookmark(self, reader: str, offset: int, *, may_move_back: bool) -> int:
        end = self.log.end_offset
        if not REMOVED <= offset <= end:
            raise OffsetOutOfRange(offset, self.start_offset, end)
        event = self._bookmarks.move(reader, offset, may_move_back=may_move_back)
        moved = self.bookmark_of(reader)
        if event is not None:
            await self.journal.add_event(event).committed.wait()
        elif self.journal.high_watermark < end:
            await self.journal.join().committed.wait()  # of an earlier move
        return moved

    def _advanced(self) -> None:
        self.stream.advanced()
        self.leases.wake()
        if self.shares:
            for share in tuple(self.shares.values()):
                share.wake()

    def _reload(self) -> None:
        """Restore the cursors from the log, because they contain changes whose append failed."""
        shares = [leases.topic for leases in self.shares.values()]
        place = (self.log, self.topic, self.index)
        restored = Replay(*place, shares=shares, context=self._context).finish()
        self._dedup = restored.dedup
        self._begun_at = restored.begun_at
        self._bookmarks = restored.bookmarks
        self._unknown_shares = restored.unknown_shares
        self.stream.producers = restored.producers
        self.leases.replace_cursor(restored.cursor)
        for share, cursor in restored.shares:
            self.shares[share.topic_id].replace_cursor(cursor)

    @property
    def is_checkpoint_due(self) -> bool:
        return self.journal.appended_bytes - self._checkpoint_bytes >= CHECKPOINT_BYTES

    async def checkpoint(self) -> None:
        """Write the state of the lease cursors to disk, once it is committed."""
        self.journal.flush()
        if self.journal.appended_bytes == self._checkpoint_bytes:
            return
        end_offset = self.log.end_offset
        self._checkpoint_bytes = self.journal.appended_bytes
        write = checkpoint_writer(
            self.log,
            self.leases.cursor,
            ((share_id, leases.cursor) for share_id, leases in self.shares.items()),
            self.stream.snapshot(),
            offset=end_offset,
            begun_at=self._begun_at,
            bookmarks=self._bookmarks,
            unknown_shares=self._unknown_shares,
            clock=self._clock,
        )
        if self.journal.high_watermark < end_offset:
            # Records that are not committed may be replaced by another leader's.
            await self.journal.join().committed.wait()
            if self.journal.high_watermark < end_offset:
                return  # this topic does not wait for commits
        await self._loop.run_in_executor(self._context.pool, write)

    @property
    def low_offset(self) -> int:
        """The lowest offset whose record must be kept. A stream keeps all readable records."""
        if not self.topic.is_queue:
            return self.start_offset
        return min(view.cursor.low_offset() for view in self._views())

    async def clean(self) -> int:
        """Drop expired records and unused segments. Returns the number of bytes freed."""
        self.log.expire_recent()
        freed_bytes = await self._drop_segments()
        if self.topic.is_queue:
            await self.leases.expire()
        return freed_bytes

    async def compact(self) -> int:
        """Keep only the last record of each key, if this frees enough. Returns the bytes freed."""
        if self.damage is not None or self.journal.failure is not None or self.shares:
            return 0  # the lease cursors of shares rely on the number of records
        return await self._compactor.run(
            self.topic,
            lambda: self.stream.producers,
            up_to=self.journal.high_watermark,
            held_offset=None if self._replication is None else self._replication.held_offset,
        )

    async def _drop_segments(self) -> int:
        topic, context, wall_ms = self.topic, self._context, self._clock.wall_ms()
        if context.hold.keeps_segments(now_ms=self._clock.mono_ms()) and not context.disk.is_low:
            return 0  # a backup may be reading; a low disk has priority
        cut = droppable(
            self.log.segments(),
            settings_of(topic, context.defaults),
            low_offset=self.low_offset,
            keep_after_ms=wall_ms - limits.DEDUP_WINDOW_MS if topic.is_fifo else None,
            now_ms=wall_ms,
        )
        if cut <= self.log.start_offset:
            return 0
        if self.journal.high_watermark < self.log.end_offset:
            # Acks that are not committed must not delete records.
            await self.journal.join().committed.wait()
            if self.journal.high_watermark < cut:
                return 0  # this topic does not wait for commits
        await self._low_watermark.move(cut)
        detached = self.log.detach_before(cut)
        self.stream.trim(self.start_offset)
        return await self._remove(detached)

    async def _remove(self, detached: Detached) -> int:
        return await self._loop.run_in_executor(self._context.pool, detached.remove)

    def sync_soon(self) -> None:
        """Start a sync if fsync is ``interval``. If it is ``never``, start one only if a closed
        segment is unsynced."""
        fsync = self.journal.fsync
        if fsync is Fsync.INTERVAL or (fsync is Fsync.NEVER and self.log.has_unsynced_sealed):
            self.journal.sync_soon()

    async def close(self) -> None:
        await self._stop_views()
        if self.journal.failure is not None:
            self.log.close(clean=False)
            return
        await self.journal.settle()
        await self._low_watermark.rest()
        await self.checkpoint()
        self.log.drop_batch_cache()
        await self._loop.run_in_executor(self._context.pool, self.log.close)

    async def release(self, reason: PenstockError) -> None:
        """Stop leading, because another node leads now. The log stays open for following it."""
        await self._stop_views()
        await self.journal.end(reason)
        await self._low_watermark.rest()
        self.stream.advanced()  # waiting readers read again and are redirected

    async def abandon(self) -> None:
        """Close without saving, because the topic is deleted and its folder will be removed."""
        await self._stop_views()
        await self.journal.end(TopicNotFound(self.topic.name))
        await self._low_watermark.rest()
        self.log.close(clean=False)
        self.log.drop_batch_cache()

    async def _stop_views(self) -> None:
        for leases in self._views():
            leases.disarm()
        await self._compactor.stop()
