"""Writes one partition's log: what arrives in one turn of the event loop becomes one append, and
what is appended while a sync runs shares the next one.

Messages and cursor events are collected during a turn and written at its end, messages first, so
that a message's offset is known when it is handed in. Coalescing costs no latency (the turn is
ending anyway) and saves a header, a checksum and a system call per message.

The promises, per topic: ``always`` answers after fdatasync, ``interval`` and ``never`` once the
bytes are in the page cache. The high watermark is what consumers may see: the durable end of the
log under ``always``, its end otherwise. Where other nodes hold the log as well it is what the
in-sync set has (``Replication``), and an answer waits for that, unless the topic is replicated
asynchronously: then only consumers do.

A sync that fails ends the journal: the kernel may have dropped the dirty pages and a second
fdatasync would lie.

An append that fails is settled for its own callers at once, whatever the exception. The messages
of a turn and its events are two appends: one may fail while the other is written.

- Nothing reached the log (no disk space, or a message that cannot be encoded): the log is as it
  was, the cursors are read back from the log, and the partition goes on.
- Anything else, also an exception that nobody expected: the log and the cursors may disagree. The
  partition goes out of service, as after a failed sync, until the node opens it again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from time import perf_counter
from typing import Protocol

from penstock.broker.flush import Flush
from penstock.log.log import AppendsRefused, Log, SyncJob
from penstock.model import limits
from penstock.model.errors import Damaged, DiskFull, Overloaded, PenstockError
from penstock.model.message import Message
from penstock.model.ports import Clock
from penstock.model.topic import Fsync
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_SEALED,
    BatchHeader,
    encode_batch,
    placed,
)
from penstock.record.control import encode_control_batch
from penstock.record.message import encode_message

log_ = logging.getLogger(__name__)

# A record's overhead is small beside its body: bounding the bodies bounds the batch.
FLUSH_BYTES_MAX = limits.BATCH_BYTES_MAX // 4


class _NotEncoded(Exception):
    """A message or an event could not be turned into bytes: nothing of its batch is in the log."""


class Replication(Protocol):
    """The other holders of a log, as its leader's journal sees them."""

    @property
    def epoch(self) -> int:
        """Of this leader: every batch it appends carries it."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def is_awaited(self) -> bool:
        """Whether an answer waits for them, or only consumers do."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether all that earlier leaders may have answered for is committed here."""
        ...

    @property
    def held_offset(self) -> int:
        """What every replica has on disk, in sync or not, as far as is known."""
        ...

    @property
    def level(self) -> int:
        """The feature level in force."""
        ...

    def stored_low_watermark(self, offset: int) -> None:
        """The file of this node says so: followers are told."""
        ...

    async def low_watermark_held(self, offset: int) -> None:
        """Return when every replica that may be elected has stored at least ``offset``. Raises
        LeaderMoved."""
        ...

    def check_takes(self) -> None:
        """Raises NotEnoughReplicas while what the topic asks for could not be promised."""
        ...

    def appended(self, next_offset: int) -> None:
        """The log has grown up to here: those who wait for more are served."""
        ...

    def damaged(self, damage: Damaged) -> None:
        """The log is: others have it whole."""
        ...

    def synced(self, durable_offset: int) -> int:
        """This node has so much on disk. Returns the high watermark."""
        ...


class Journal:
    def __init__(
        self,
        log: Log,
        *,
        topic: str,
        partition: int,
        fsync: Fsync,
        clock: Clock,
        pool: Executor,
        on_appended: Callable[[int, int, int, Sequence[Message]], None],
        on_batch: Callable[[BatchHeader], None],
        on_high_watermark: Callable[[], None],
        on_lost: Callable[[], None],
        on_synced: Callable[[float], None],
        on_committed: Callable[[int, float], None],
        replication: Replication | None = None,
    ) -> None:
        self.log = log
        self._named = {"topic": topic, "partition": partition}  # for log lines
        self.fsync = fsync
        # By itself a node has no epochs, but its log may come from a cluster's backup.
        self.leader_epoch = max(log.last_epoch, 0) if replication is None else replication.epoch
        self.high_watermark = log.end_offset if replication is None else replication.high_watermark
        self.failure: PenstockError | None = None
        self.appended_bytes = 0
        # Append times never decrease along a log; a producer's own times may be anything.
        self._last_ms = min(log.last_timestamp_ms, clock.wall_ms())
        self._clock = clock
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._on_appended = on_appended
        self._on_batch = on_batch
        self._on_high_watermark = on_high_watermark
        self._on_lost = on_lost
        self._on_synced = on_synced
        self._on_committed = on_committed
        self._replication = replication
        # Where an append is not committed when it is written, it waits in a flush for that.
        self._is_flush_awaited = fsync is Fsync.ALWAYS or replication is not None
        # This turn:
        self._messages: list[Message] = []
        self._events: list[tuple[int, bytes]] = []
        self._flush: Flush | None = None
        # Appended by this call, not yet handed over to be committed:
        self._batches_bytes = 0
        self._batches_at = 0.0
        # Written, waiting for a sync:
        self._committing: deque[Flush] = deque()
        self._sync_task: asyncio.Future[float] | None = None

    # ── handing in ───────────────────────────────────────────────────────────────────────────

    @property
    def is_replicated(self) -> bool:
        return self._replication is not None

    @property
    def next_offset(self) -> int:
        """Where the next message handed in will stand."""
        return self.log.end_offset + len(self._messages)

    def add_message(self, message: Message) -> Flush:
        self._messages.append(message)
        return self.join()

    def add_event(self, event: tuple[int, bytes]) -> Flush:
        self._events.append(event)
        return self.join()

    def append_batch(
        self,
        batch: bytes | memoryview,
        header: BatchHeader,
        *,
        append_time_ms: int | None = None,
    ) -> BatchHeader:
        """Append a producer's batch now, behind what this turn has handed in so far; ``commit``
        follows, whatever else happens. Returns its header as it stands in the log. Raises
        DiskFull."""
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
        """Commit the batches just appended. Where nobody waits for a sync they are committed when
        this returns, and there is nothing to wait for; else there is the flush of this turn."""
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
        """The flush at the end of this turn."""
        if self.failure is not None:
            raise self.failure
        flush = self._flush
        if flush is None:
            flush = self._flush = Flush()
            self._loop.call_soon(self.flush)
        return flush

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Append what this turn handed in. Called at the end of the turn, or earlier by whoever
        needs the order of messages and events to be fixed now."""
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
                raise  # settled already: only waking readers failed
            flush.fail(self._append_failed(error))  # else its callers wait until their deadline

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
        flush.succeed()
        self._on_committed(flush.size_bytes, perf_counter() - flush.started)

    def _append(self, append: Callable[[], None]) -> PenstockError | None:
        try:
            append()
        except DiskFull as error:
            return error
        except _NotEncoded as error:
            log_.error("append could not be encoded", extra=self._named, exc_info=error.__cause__)
            return Overloaded("The append failed: a message could not be encoded.")
        except Exception as error:
            return self._append_failed(error)
        return None

    def _append_failed(self, error: Exception) -> PenstockError:
        """End the journal: what the log and the cursors hold is unknown after this error."""
        if not isinstance(error, OSError | AppendsRefused):
            log_.error("append raised an unexpected error", extra=self._named, exc_info=error)
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

    # ── syncing ──────────────────────────────────────────────────────────────────────────────

    def sync_soon(self) -> None:
        """For ``interval``: write back what has been appended, with nobody waiting."""
        if self.failure is None:
            self._sync()

    def _sync(self) -> None:
        if self._sync_task is not None:
            return  # what was just appended shares the next sync
        try:
            job = self.log.begin_sync()
        except DiskFull:
            return  # of a side file; the next flush asks again
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
                durable_offset = self.log.end_offset  # as durable as the topic asks for
            self.replicated(self._replication.synced(durable_offset))
            if not self._replication.is_awaited:
                self._settle_up_to(durable_offset)
            return
        if self.fsync is Fsync.ALWAYS:
            self.high_watermark = max(self.high_watermark, durable_offset)
        self._settle_up_to(durable_offset)
        self._on_high_watermark()

    def replicated(self, high_watermark: int) -> None:
        """The in-sync set has so much."""
        if high_watermark <= self.high_watermark:
            # What joined in the turn in which this was told has nothing more to wait for.
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
        """Refuse everything from now on. What was not yet committed is answered as unknown."""
        failure = self.failure
        if failure is None:
            failure = self.failure = Overloaded(f"the partition is out of service: {reason}")
            named = {**self._named, "folder": str(self.log.folder)}
            log_.critical("partition failed", extra={**named, "reason": reason})
        while self._committing:
            self._committing.popleft().fail(failure)
        return failure

    def hand_over(self, reason: PenstockError, unknown: PenstockError) -> Sequence[Flush]:
        """Refuse everything from now on, what has not been written included. What has been, and is
        not committed yet, is the caller's to settle."""
        flush = self._flush
        is_written = flush is not None and flush.size_bytes > 0  # batches of it are in the log
        self.failure = unknown if is_written else reason
        self.flush()
        self.failure = reason
        pending = [one for one in self._committing if is_written or one is not flush]
        self._committing.clear()
        if flush is not None and not is_written:
            flush.fail(reason)
        return pending

    async def end(self, reason: PenstockError) -> None:
        """Refuse everything from now on, and return when no sync is using the files."""
        for flush in self.hand_over(reason, reason):
            flush.fail(reason)
        while self._sync_task is not None:
            await asyncio.wait([self._sync_task])

    async def settle(self) -> None:
        """Flush and sync; for a clean stop."""
        if self.failure is not None:
            return
        while True:
            done = self.join().committed.wait()
            self.flush()
            await done
            if self._sync_task is None:
                return
            # Without it, and where commits do not wait for syncs, this would not let the sync end.
            await asyncio.wait([self._sync_task])


def _timed_run(job: SyncJob) -> float:
    started = perf_counter()
    job.run()
    return perf_counter() - started
