"""One partition of a coordinator's internal topic: appends and reads rows. A record's key names an
object, such as a group; its value is the object's new state, or None if it was deleted. All rows of
a decision are in one batch, so after a crash either all of them are in the log or none.

A row that the coordinator cannot apply stops the reading, because skipping it silently would lose
state. An operator can skip the row: the topic's catalog entry then lists its offset and digest."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.cursor.rows import Row
from penstock.model.calls import AppendBatches, BrokerPort, Ends, Fetch
from penstock.model.errors import PenstockError
from penstock.model.limits import BATCH_BYTES_MAX, KIB
from penstock.model.ports import Clock
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
SETTLE_SECONDS = 1.0  # pause before a new leader is asked again for its end offset
READ_BYTES_MAX = 128 * KIB  # decoding them takes about ten milliseconds
BATCH_ROWS_BYTES_MAX = 256 * KIB  # a batch ends after the decision that exceeds this size
# Members of a group send similar bytes, so large rows compress well. Small rows do not.
COMPRESSED_BYTES_MIN = 16 * KIB


class RowsTooLarge(PenstockError):
    """The rows of one change, for example to a group with many members, do not fit into a batch."""


class RowsMissing(PenstockError):
    pass


class RowUnreadable(PenstockError):
    """A coordinator cannot read a row of its log, and stops until an operator skips the row."""

    def __init__(
        self, topic: str, partition: int, offset: int, row: Row | None, reason: str
    ) -> None:
        super().__init__(f"{topic}/{partition}: the row at offset {offset} is unreadable: {reason}")
        self.topic, self.partition, self.offset = topic, partition, offset
        self.row, self.reason = row, reason


class PlacedRow(NamedTuple):
    offset: int
    row: Row


def digest_of(row: Row) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(row), digest_size=16).hexdigest()


def encode_rows(decisions: Sequence[Sequence[Row]], *, wall_ms: int) -> list[bytes]:
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
        base_offset=0,  # assigned by the log
        leader_epoch=0,
        base_timestamp=wall_ms,
        max_timestamp=wall_ms,
        attributes=Codec.ZSTD if size >= COMPRESSED_BYTES_MIN else Codec.NONE,
    )
    if len(batch) > BATCH_BYTES_MAX:
        raise RowsTooLarge(
            f"{len(records)} rows need a batch of {len(batch)} bytes, more than a batch may have"
        )
    return batch


class RowLog:
    def __init__(self, broker: BrokerPort, topic: Topic, partition: int, clock: Clock) -> None:
        self.partition = partition
        self.epoch = 0  # leader epoch at the last call of ``ends``
        self._broker = broker
        self._topic = topic
        self._clock = clock
        self._skipped = {
            skipped.offset: skipped.digest
            for skipped in topic.skipped_rows
            if skipped.partition == partition
        }

    async def ends(self) -> tuple[int, int]:
        """Return the partition's start offset and high watermark, once its leader knows them."""
        ends = await self._broker.call(Ends(self._topic, self.partition))
        while not ends.is_settled:
            moved = asyncio.Event()
            remove = self._broker.on_advance(self._topic, self.partition, moved.set)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SETTLE_SECONDS):
                        await moved.wait()
            finally:
                remove()
            ends = await self._broker.call(Ends(self._topic, self.partition))
        self.epoch = ends.leader_epoch
        return ends.start_offset, ends.high_watermark

    async def replay(self, start: int, end: int, replay: Callable[[Row], object]) -> None:
        async for placed in self.read(start, end):
            for offset, row in placed:
                try:
                    replay(row)
                except Exception as error:
                    reason = str(error) if isinstance(error, ValueError) else repr(error)
                    raise self._unreadable(offset, row, reason) from error

    async def read(self, start: int, end: int) -> AsyncIterator[Sequence[PlacedRow]]:
        """Yield the rows in [start, end), except rows that an operator skipped."""
        offset = start
        while offset < end:
            place = (self._topic, self.partition)
            fetched = await self._broker.call(
                Fetch(*place, offset=offset, bytes_max=READ_BYTES_MAX, is_committed=False)
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
                raise RowsMissing(
                    f"{self._topic.name}/{self.partition}: rows are missing at offset {before}"
                )
            yield rows
            await asyncio.sleep(0)  # reads from memory do not suspend, so let other tasks run

    def _rows_of(self, batch: bytes, header: BatchHeader) -> Sequence[PlacedRow]:
        try:
            placed = [
                PlacedRow(record.offset, Row(record.key or b"", record.value))
                for record in iter_records(batch)
            ]
        except MalformedBatch as error:
            # Rows of a malformed batch cannot be separated, so only a single row can be skipped.
            offset = header.base_offset
            row = Row(b"", batch[HEADER_BYTES:]) if header.count == 1 else None
            if row is not None and self._skipped.get(offset) == digest_of(row):
                return ()
            raise self._unreadable(offset, row, str(error)) from error
        if not self._skipped:
            return placed
        return [one for one in placed if self._skipped.get(one.offset) != digest_of(one.row)]

    def _unreadable(self, offset: int, row: Row | None, reason: str) -> RowUnreadable:
        return RowUnreadable(self._topic.name, self.partition, offset, row, reason)

    async def append(self, decisions: Sequence[Sequence[Row]]) -> None:
        """Append rows and wait until they are committed. After an error, some may be in the log."""
        for batch in encode_rows(decisions, wall_ms=self._clock.wall_ms()):
            await self._broker.call(
                AppendBatches(self._topic, self.partition, acks=ACKS_ALL, batches=(batch,))
            )


def portions(rows: Iterable[Row], size_bytes: int = 0) -> Iterator[Sequence[Row]]:
    """Yield the rows in lists of about ``size_bytes`` each, by default the size of a batch."""
    portion: list[Row] = []
    size = 0
    for row in rows:
        portion.append(row)
        size += len(row.key) + len(row.value or b"")
        if size >= (size_bytes or BATCH_ROWS_BYTES_MAX):
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
