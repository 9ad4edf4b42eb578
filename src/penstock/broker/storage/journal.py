"""Appends to the log of one partition. All requests in one iteration of the event loop are appended
together, and appends during a sync share the next sync. Messages and lease events are written at
the end of the iteration, messages first, so the offset of a message is known at once.

With the fsync mode ``always``, a reply is sent after fdatasync; with ``interval`` and ``never``,
when the bytes are in the page cache. The offset up to which this is done is the high watermark.
Consumers can read up to it. In a cluster, it is the offset that all in-sync replicas have
(``Replication``), and replies wait for it, unless the topic is replicated asynchronously.

After a failed sync the journal rejects everything, because the kernel may have dropped the dirty
pages, and another fdatasync would report success. A failed append fails at once for its own
callers; the messages and the events of an iteration are two appends. If nothing was written, the
cursors are restored from the log, and the partition continues. After any other error, log and
cursors may disagree, so the partition is out of service until the node opens it again."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

from penstock.broker.context.context import BrokerContext
from penstock.broker.storage.flush import Flush
from penstock.log.log import AppendsRefused, Log, SyncJob
from penstock.model import limits
from penstock.model.errors import Damaged, DiskFull, Overloaded, PenstockError
from penstock.model.message import Message
from penstock.model.topic import Fsync, Topic
from penstock.record.batch import ATTR_APPEND_TIME, ATTR_SEALED, BatchHeader, encode_batch, placed
from penstock.record.control import encode_control_batch
from penstock.record.message import encode_message

log_ = logging.getLogger(__name__)

# A record's overhead is small compared to its body, so this limits the size of a batch.
FLUSH_BYTES_MAX = limits.BATCH_BYTES_MAX // 4


class _NotEncoded(Exception):
    """A message or event could not be encoded. No part of its batch is in the log."""


class Replication(Protocol):
    """Replication as the leader's journal sees it. Implemented by ``replicas/leadership.py``."""

    @property
    def epoch(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def is_awaited(self) -> bool: ...  # whether replies wait for the in-sync set

    @property
    def is_settled(self) -> bool: ...  # everything from earlier leaders is committed

    @property
    def held_offset(self) -> int: ...  # offset that all replicas have on disk

    @property
    def level(self) -> int: ...  # the cluster's current feature level

    def stored_low_watermark(self, offset: int) -> None: ...

    # Waits until all replicas that may be elected have stored it. Raises LeaderMoved.
    async def low_watermark_held(self, offset: int) -> None: ...

    def check_accepts(self) -> None: ...  # raises NotEnoughReplicas

    def appended(self, next_offset: int) -> None: ...

    def damaged(self, damage: Damaged) -> None: ...

    def synced(self, durable_offset: int) -> int: ...  # returns the high watermark


class Journal:
    def __init__(
        self,
        log: Log,
        topic: Topic,
        index: int,
        context: BrokerContext,
        *,
        on_appended: Callable[[int, int, int, Sequence[Message]], None],
        on_batch: Callable[[BatchHeader], None],
        on_high_watermark: Callable[[], None],
        on_lost: Callable[[], None],
        replication: Replication | None = None,
    ) -> None:
        self.log = log
        self._log_fields = {"topic": topic.name, "partition": index}
        self.fsync = topic.fsync or context.fsync_default
        # Without a cluster there are no epochs, but the log may come from the backup of a cluster.
        self.leader_epoch = max(log.last_epoch, 0) if replication is None else replication.epoch
        self.high_watermark = log.end_offset if replication is None else replication.high_watermark
        self.failure: PenstockError | None = None
        self.appended_bytes = 0
        # Append times never decrease along a log. Timestamps of producers can be arbitrary.
        self._last_ms = min(log.last_timestamp_ms, context.clock.wall_ms())
        self._clock = context.clock
        self._pool = context.pool
        self._loop = asyncio.get_running_loop()
        self._on_appended = on_appended
        self._on_batch = on_batch
        self._on_high_watermark = on_high_watermark
        self._on_lost = on_lost
        self._on_synced = context.meter.fsyncs.observe
        self._on_committed = context.meter.appended
        self._replication = replication
        self.is_replicated = replication is not None
        # Whether appends must wait to be committed, or are committed when written.
        self._is_flush_awaited = self.fsync is Fsync.ALWAYS or self.is_replicated
        # Added in this iteration of the event loop:
        self._messages: list[Message] = []
        self._events: list[tuple[int, bytes]] = []
        self._flush: Flush | None = None
        # Appended by ``append_batch`` since the last ``commit``:
        self._batches_bytes = 0
        self._batches_at = 0.0
        # Written, waiting to be committed:
        self._committing: deque[Flush] = deque()
        self._sync_task: asyncio.Future[float] | None = None

    @property
    def next_offset(self) -> int:
        return self.log.end_offset + len(self._messages)

    def add_message(self, message: Message) -> Flush:
        self._messages.append(message)
        return self.join()

    def add_event(self, event: tuple[int, bytes]) -> Flush:
        self._events.append(event)
        return self.join()

    def append_batch(
        self, batch: bytes | memoryview, header: BatchHeader, *, append_time_ms: int | None = None
    ) -> BatchHeader:
        """Append a producer's batch. Returns its header as written to the log. The caller must call
        ``commit`` afterwards, even after an error."""
        if self._messages or self._events:
            self.flush()
        if self.failure is not None:
            raise self.failure
        if not self._batches_bytes:
            self._batches_at = perf_counter()
        log = self.log
        data, header = placed(
            batch,
            header,
            base_offset=log.end_offset,
            leader_epoch=self.leader_epoch,
            append_time_ms=append_time_ms,
        )
        try:
            log.append(data, now_ms=self._clock.wall_ms(), header=header)
            size = len(data)
            self.appended_bytes += size
            self._batches_bytes += size
            self._on_batch(header)
            if self._replication is not None:
                self._replication.appended(log.end_offset)
        except DiskFull:
            raise
        except Exception as error:
            raise self._append_failed(error) from error
        return header

    def commit(self) -> Flush | None:
        """Commit what ``append_batch`` has appended. Returns the flush to wait for, if any."""
        size, self._batches_bytes = self._batches_bytes, 0
        if not size or self.failure is not None:
            return None
        if self._is_flush_awaited:
            flush = self.join()
            flush.started = flush.started or self._batches_at
            flush.size_bytes += size
            return flush
        self.high_watermark = self.log.end_offset
        self._on_committed(size, perf_counter() - self._batches_at)
        self._on_high_watermark()
        return None

    def join(self) -> Flush:
        """Return the flush that will run at the end of this iteration of the event loop."""
        if self.failure is not None:
            raise self.failure
        flush = self._flush
        if flush is None:
            flush = self._flush = Flush()
            self._loop.call_soon(self.flush)
        return flush

    def flush(self) -> None:
        """Append all messages and events that were added in this iteration of the event loop."""
        flush, self._flush = self._flush, None
        if flush is None:
            return
        if not flush.started:
            flush.started = perf_counter()
        try:
            if self._messages or self._events or self.failure is not None:
                self._write(flush)
            flush.end_offset = self.log.end_offset
            if self._is_flush_awaited:
                if self._replication is None or not self._replication.is_awaited:
                    flush.written.settle()
                self._committing.append(flush)
                if self.fsync is Fsync.ALWAYS:
                    self._sync()
                else:
                    self._advance(flush.end_offset)
            else:
                self.high_watermark = flush.end_offset
                self._commit(flush)
                self._on_high_watermark()
        except Exception as error:
            if flush.committed.is_past:
                raise  # already settled; a listener failed
            flush.settle(self._append_failed(error))

    def _write(self, flush: Flush) -> None:
        messages, self._messages = self._messages, []
        events, self._events = self._events, []
        now_ms = self._last_ms = max(self._clock.wall_ms(), self._last_ms)
        appended_before = self.appended_bytes
        sent_error = events_error = self.failure
        if messages and sent_error is None:
            sent_error = self._append(partial(self._append_messages, messages, now_ms))
        if events and events_error is None:
            events_error = self._append(partial(self._append_events, events, now_ms))
        if sent_error is not None:
            flush.sent.settle(sent_error)
        if events_error is not None:
            flush.written.settle(events_error)
            flush.committed.settle(events_error)
        if (sent_error is not None or events_error is not None) and self.failure is None:
            try:
                self._on_lost()
            except Exception as error:
                self._append_failed(error)
        flush.size_bytes += self.appended_bytes - appended_before

    def _commit(self, flush: Flush) -> None:
        flush.settle()
        self._on_committed(flush.size_bytes, perf_counter() - flush.started)

    def _append(self, append: Callable[[], None]) -> PenstockError | None:
        try:
            append()
        except DiskFull as error:
            return error
        except _NotEncoded as error:
            log_.error("batch encoding failed", extra=self._log_fields, exc_info=error.__cause__)
            return Overloaded("The append failed because a message could not be encoded.")
        except Exception as error:
            return self._append_failed(error)
        return None

    def _append_failed(self, error: Exception) -> PenstockError:
        """Put the partition out of service, because log and cursors may disagree."""
        if not isinstance(error, OSError | AppendsRefused):
            log_.error("append failed unexpectedly", extra=self._log_fields, exc_info=error)
        self.log.refuse_appends(f"append failed: {error}")
        return self._fail(f"append failed: {error}")

    def _append_messages(self, messages: Sequence[Message], now_ms: int) -> None:
        start = 0
        while start < len(messages):
            base_offset = self.log.end_offset
            size = 0
            attributes = ATTR_APPEND_TIME
            records: list[bytes] = []
            try:
                for message in messages[start : start + limits.FLUSH_RECORDS_MAX]:
                    record = encode_message(message, offset_delta=len(records), timestamp_delta=0)
                    size += len(record)
                    if size > FLUSH_BYTES_MAX and records:
                        break
                    records.append(record)
                    if message.is_sealed:
                        attributes |= ATTR_SEALED
                batch = encode_batch(
                    records,
                    base_offset=base_offset,
                    leader_epoch=self.leader_epoch,
                    base_timestamp=now_ms,
                    max_timestamp=now_ms,
                    attributes=attributes,
                )
            except Exception as error:
                raise _NotEncoded from error
            self.log.append(batch, now_ms=now_ms)
            self.appended_bytes += len(batch)
            end = start + len(records)
            self._on_appended(base_offset, self.log.end_offset, now_ms, messages[start:end])
            if self._replication is not None:
                self._replication.appended(self.log.end_offset)
            start = end

    def _append_events(self, events: Sequence[tuple[int, bytes]], now_ms: int) -> None:
        try:
            batch = encode_control_batch(
                events,
                base_offset=self.log.end_offset,
                leader_epoch=self.leader_epoch,
                timestamp=now_ms,
            )
        except Exception as error:
            raise _NotEncoded from error
        self.log.append(batch, now_ms=now_ms)
        self.appended_bytes += len(batch)
        if self._replication is not None:
            self._replication.appended(self.log.end_offset)

    def sync_soon(self) -> None:
        if self.failure is None:
            self._sync()

    def _sync(self) -> None:
        if self._sync_task is not None:
            return  # this append shares the next sync
        try:
            job = self.log.begin_sync()
        except DiskFull:
            return  # no space for a metadata file; the next flush retries
        except (OSError, AppendsRefused) as error:
            self._fail(f"sync failed: {error}")
            return
        if job is None:
            self._advance(self.log.end_offset)
            return
        task = self._sync_task = self._loop.run_in_executor(self._pool, _timed_run, job)
        task.add_done_callback(partial(self._synced, job))

    def _synced(self, job: SyncJob, task: "asyncio.Future[float]") -> None:
        self._sync_task = None
        error = task.exception() if not task.cancelled() else None
        if task.cancelled() or error is not None:
            self._fail(f"fdatasync failed: {error}")
            return
        self._on_synced(task.result())
        try:
            self.log.finish_sync(job)
            if self.failure is not None:
                return
            self._advance(self.log.durable_offset)
            if self._committing:
                self._sync()
        except Exception as failed:
            if not self._committing:
                raise
            self._append_failed(failed)

    def _advance(self, durable_offset: int) -> None:
        if self._replication is not None:
            if self.fsync is not Fsync.ALWAYS:
                durable_offset = self.log.end_offset  # durable enough for this fsync mode
            self.replicated(self._replication.synced(durable_offset))
            if not self._replication.is_awaited:
                self._settle_up_to(durable_offset)
            return
        if self.fsync is Fsync.ALWAYS:
            self.high_watermark = max(self.high_watermark, durable_offset)
        self._settle_up_to(durable_offset)
        self._on_high_watermark()

    def replicated(self, high_watermark: int) -> None:
        if high_watermark <= self.high_watermark:
            # A flush that was added later may have nothing to wait for.
            self._settle_up_to(self.high_watermark)
            return
        self.high_watermark = high_watermark
        self._settle_up_to(high_watermark)
        self._on_high_watermark()

    def _settle_up_to(self, offset: int) -> None:
        committing = self._committing
        while committing and committing[0].end_offset <= offset:
            self._commit(committing.popleft())

    def _fail(self, reason: str) -> PenstockError:
        """Reject all further requests, and fail appends that are not committed."""
        failure = self.failure
        if failure is None:
            failure = self.failure = Overloaded(f"the partition is out of service: {reason}")
            fields = {**self._log_fields, "folder": str(self.log.folder), "reason": reason}
            log_.critical("partition is out of service", extra=fields)
        while self._committing:
            self._committing.popleft().settle(failure)
        return failure

    def hand_over(self, reason: PenstockError, unknown: PenstockError) -> Sequence[Flush]:
        """Reject all further requests and the requests that are not written yet. Returns the
        flushes that are written but not committed; the caller must end them (``Stage.settle``)."""
        flush = self._flush
        is_written = flush is not None and flush.size_bytes > 0  # its batches are in the log
        self.failure = unknown if is_written else reason
        self.flush()
        self.failure = reason
        pending = [each for each in self._committing if is_written or each is not flush]
        self._committing.clear()
        if flush is not None and not is_written:
            flush.settle(reason)
        return pending

    async def end(self, reason: PenstockError) -> None:
        """Reject all further requests, and wait until no sync uses the files."""
        for flush in self.hand_over(reason, reason):
            flush.settle(reason)
        while self._sync_task is not None:
            await asyncio.wait([self._sync_task])

    async def settle(self) -> None:
        if self.failure is not None:
            return
        while True:
            done = self.join().committed.wait()
            self.flush()
            await done
            if self._sync_task is None:
                return
            # If commits do not wait for syncs, one may still be running.
            await asyncio.wait([self._sync_task])


def _timed_run(job: SyncJob) -> float:
    started = perf_counter()
    job.run()
    return perf_counter() - started
