"""One partition of an internal topic that coordinators keep their state in: rows in, rows out.

A row is a record: its key says what is meant, its value what holds from now on, no value that it is
gone. Rows of one decision are in one batch, so a crash leaves all of them or none; decisions that
are appended together share batches as far as they fit.

**Compaction.** The topic is compacted as any other: a row that has a newer one of its key goes, the
newest stays at its offset. So readers of the topic (``__consumer_offsets`` is a view of it) get no
row twice.

**Unreadable rows.** A row that the fold rejects stops the reading, because to pass over a row that
belongs here would lose what it says. An operator may look at the row and skip it: the topic's entry
in the catalog then names the row by its offset and digest, and every reader passes over it.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.cursor.group.rows import Row
from penstock.model.errors import PenstockError
from penstock.model.limits import BATCH_BYTES_MAX, KIB
from penstock.model.ports import Clock, Streams
from penstock.model.topic import Topic
from penstock.record.batch import (
    HEADER_BYTES,
    BatchHeader,
    encode_batch,
    parse_header,
    split_batches,
)
from penstock.record.compression import Codec
from penstock.record.malformed import MalformedBatch
from penstock.record.record import encode_record, iter_records

ACKS_ALL = -1
SETTLE_SECONDS = 1.0  # then a new leader is asked again whether it knows its end
READ_BYTES_MAX = 128 * KIB  # decoded in one go: some ten milliseconds of the loop
BATCH_ROWS_BYTES_MAX = 256 * KIB  # a batch is closed behind the decision that exceeds this
# Members of a group send nearly the same bytes, so large rows shrink well; small ones do not.
COMPRESSED_BYTES_MIN = 16 * KIB


class RowsTooLarge(PenstockError):
    """A decision that no batch can hold: a group with thousands of talkative members."""


class RowsMissing(PenstockError):
    """The log says that there are records and hands out none."""


class RowUnreadable(PenstockError):
    """A row that the fold rejects: the topic is damaged, was written by a newer version, or holds
    what somebody else wrote. Nothing behind the row is read until an operator skips the row."""

    def __init__(
        self, topic: str, partition: int, offset: int, row: Row | None, reason: str
    ) -> None:
        """``row``: None if the bytes cannot be taken apart, so there is no single row to skip."""
        super().__init__(f"{topic}/{partition}: the row at offset {offset} is unreadable: {reason}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.row = row
        self.reason = reason


class PlacedRow(NamedTuple):
    offset: int
    row: Row


def digest_of(row: Row) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(row), digest_size=16).hexdigest()


def encode_rows(decisions: Sequence[Sequence[Row]], *, wall_ms: int) -> list[bytes]:
    """As few batches as fit, no decision being split."""
    batches: list[bytes] = []
    records: list[bytes] = []
    size = 0
    for rows in decisions:
        for row in rows:
            record = encode_record(
                offset_delta=len(records), timestamp_delta=0, key=row.key, value=row.value
            )
            records.append(record)
            size += len(record)
        if size >= BATCH_ROWS_BYTES_MAX:
            batches.append(_encode(records, size, wall_ms))
            records, size = [], 0
    if records:
        batches.append(_encode(records, size, wall_ms))
    return batches


def _encode(records: list[bytes], size: int, wall_ms: int) -> bytes:
    batch = encode_batch(
        records,
        base_offset=0,  # the log gives it its place
        leader_epoch=0,
        base_timestamp=wall_ms,
        max_timestamp=wall_ms,
        attributes=Codec.ZSTD if size >= COMPRESSED_BYTES_MIN else Codec.NONE,
    )
    if len(batch) > BATCH_BYTES_MAX:
        raise RowsTooLarge(f"{len(records)} rows make a batch of {len(batch)} bytes")
    return batch


class GroupLog:
    def __init__(self, streams: Streams, topic: Topic, partition: int, clock: Clock) -> None:
        self.partition = partition
        self.epoch = 0  # of the leader, when it was last asked for its ends
        self._streams = streams
        self._topic = topic
        self._clock = clock
        self._skipped = {
            skipped.offset: skipped.digest
            for skipped in topic.skipped_rows
            if skipped.partition == partition
        }

    async def ends(self) -> tuple[int, int]:
        """Where it begins, and where what is committed ends. A leader that has just begun may not
        know of all that is: then this waits until it does (R19)."""
        ends = await self._streams.ends(self._topic, self.partition)
        while not ends.is_settled:
            moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            ignore = self._streams.on_advance(
                self._topic, self.partition, partial(_settle_once, moved)
            )
            try:
                await asyncio.wait((moved,), timeout=SETTLE_SECONDS)
            finally:
                ignore()
            ends = await self._streams.ends(self._topic, self.partition)
        self.epoch = ends.leader_epoch
        return ends.start_offset, ends.high_watermark

    async def replay(self, start: int, end: int, replay: Callable[[Iterable[Row]], None]) -> None:
        """Hand all rows in [start, end) to a fold, which takes them one after another. Raises
        RowUnreadable for the first row that the fold rejects."""
        async for placed in self.read(start, end):
            rows = _Following(placed)
            try:
                replay(rows)
            except Exception as error:
                offset, row = rows.last
                reason = str(error) if isinstance(error, ValueError) else repr(error)
                raise RowUnreadable(
                    self._topic.name, self.partition, offset, row, reason
                ) from error

    async def read(self, start: int, end: int) -> AsyncIterator[Sequence[PlacedRow]]:
        """All rows in [start, end) but those that are skipped, some at a time. Raises RowUnreadable
        for a batch that cannot be taken apart."""
        offset = start
        while offset < end:
            fetched = await self._streams.fetch(
                self._topic,
                self.partition,
                offset=offset,
                bytes_max=READ_BYTES_MAX,
                is_committed=False,
            )
            rows: list[PlacedRow] = []
            before = offset
            for batch in split_batches(fetched.buffers):
                header = parse_header(batch)
                if not header.is_control:
                    found = self._rows_of(batch, header)
                    rows.extend(placed for placed in found if before <= placed.offset < end)
                offset = header.next_offset
            if offset <= before:
                raise RowsMissing(f"{self._topic.name}/{self.partition}: nothing at {before}")
            yield rows
            # A read from memory does not wait for anything, and others want their turn.
            await asyncio.sleep(0)

    def _rows_of(self, batch: bytes, header: BatchHeader) -> Sequence[PlacedRow]:
        try:
            placed = [
                PlacedRow(record.offset, Row(record.key or b"", record.value))
                for record in iter_records(batch)
            ]
        except MalformedBatch as error:
            # Rows of such a batch cannot be told apart: only a batch of one record is one row.
            offset = header.base_offset
            row = Row(b"", batch[HEADER_BYTES:]) if header.count == 1 else None
            if row is not None and self._skipped.get(offset) == digest_of(row):
                return ()
            raise RowUnreadable(
                self._topic.name, self.partition, offset, row, str(error)
            ) from error
        if not self._skipped:
            return placed
        return [one for one in placed if self._skipped.get(one.offset) != digest_of(one.row)]

    async def append(self, decisions: Sequence[Sequence[Row]]) -> None:
        """Returns once all is committed. When it raises, what stands in the log
        is committed as well: batches go one by one, and one that is refused has left nothing
        behind."""
        for batch in encode_rows(decisions, wall_ms=self._clock.wall_ms()):
            await self._streams.append_batches(self._topic, self.partition, (batch,), acks=ACKS_ALL)


def _settle_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Following:
    """Iterates over rows and remembers the last one that was taken."""

    def __init__(self, placed: Sequence[PlacedRow]) -> None:
        self._placed = placed
        self.last: PlacedRow

    def __iter__(self) -> Iterator[Row]:
        for placed in self._placed:
            self.last = placed
            yield placed.row


def portions(rows: Iterable[Row], size_bytes: int) -> Iterator[Sequence[Row]]:
    """In order, each closed behind the row that exceeds the size."""
    portion: list[Row] = []
    size = 0
    for row in rows:
        portion.append(row)
        size += len(row.key) + len(row.value or b"")
        if size >= size_bytes:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
