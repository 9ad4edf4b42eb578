"""Reads the records of one partition for one lease cursor, and for peeks, which lease nothing.
Small batches are decoded at once. A large batch is opened (decompressed and indexed,
``record.opened``) and decoded in pieces. If opening takes long, it is done in a task, and the
reader returns LATER until the task has ended."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.broker.context.context import BrokerContext
from penstock.log.log import Log
from penstock.model import limits
from penstock.model.errors import Damaged
from penstock.model.message import Message, Record
from penstock.model.ports import Peeked
from penstock.model.topic import Topic
from penstock.net.slices import in_slices, unpacked, unpacked_now
from penstock.record.batch import ATTR_CODEC_MASK, BatchHeader, parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_at, decode_batch
from penstock.record.opened import PIECE_BYTES, PIECE_RECORDS, OpenedBatch

log_ = logging.getLogger(__name__)

UNREADABLE_RECORDS_MAX: Final = 100_000  # records of an unreadable batch that expire one by one
LONG_AGO_MS: Final = -(1 << 62)
OPENED_NOW_RECORDS_MAX: Final = 4_096  # indexing them takes about 2 ms
PIECES_PER_CALL: Final = 2
PEEK_BYTES_MAX: Final = 8 * limits.READ_BYTES_MAX
PEEK_FIRST_BYTES: Final = 4 * limits.KIB
_UNREADABLE: Final = Message(message_id=bytes(16), body=b"")

Opening = asyncio.Task[OpenedBatch | MalformedBatch]


class Reading(Enum):
    LATER = "the batch is being opened"


@dataclass
class Place:
    index: int
    log: Log
    context: BrokerContext
    origin: bytes  # to derive ids for messages that have none
    on_damage: Callable[[Damaged], None]


class RecordReader:
    def __init__(self, topic: Topic, place: Place) -> None:
        self.topic = topic
        self._index = place.index
        self.log = place.log
        self._opened = place.context.opened
        self._origin = place.origin
        self._on_damage = place.on_damage
        self.ahead: deque[Record] = deque()
        self.ahead_end = 0
        self.is_later = False  # the last call stopped early; continue after ``ready``
        self._batches: deque[bytes] = deque()  # read from the log, not decoded
        self._pieces: Iterator[list[Record]] | None = None  # of the batch being decoded
        self._pieces_end = 0
        self._awaited: Opening | None = None  # opens the first of ``_batches``
        self._openings: dict[tuple[int, int], Opening] = {}  # by base offset and next offset

    def forget(self) -> None:
        """Drop the records that were read ahead, because the cursor moved to another offset."""
        self.ahead.clear()
        self._batches.clear()
        self._pieces = self._awaited = None
        self.is_later = False

    def close(self) -> None:
        self.forget()
        self._opened.forget(self)
        for opening in self._openings.values():
            opening.cancel()

    async def ready(self) -> None:
        """Wait until more records can be read. Always gives other tasks a chance to run."""
        if self._awaited is not None and not self._awaited.done():
            await asyncio.wait((self._awaited,))
        else:
            await asyncio.sleep(0)

    @property
    def opening(self) -> Opening | None:
        """The task that opens the next batch, if ``read_ahead`` must wait for it."""
        return None if self._awaited is None or self._awaited.done() else self._awaited

    def read_ahead(self, scan_from: int, high_watermark: int) -> bool:
        """Decode more records into ``ahead``. Returns False if no record can be read now."""
        self.is_later = False
        if self._pieces is None and not self._batches:
            try:
                self._batches.extend(
                    self.log.read(scan_from, bytes_max=limits.READ_BYTES_MAX, up_to=high_watermark)
                )
            except Damaged as damage:
                self._on_damage(damage)
            if not self._batches:
                return False
        ahead, is_read = self.ahead, False
        for _ in range(PIECES_PER_CALL):
            if self._pieces is None and not self._decode_batches(scan_from):
                break
            is_read = True
            if self._pieces is not None:
                self._decode_piece()
            if len(ahead) >= limits.WINDOW_RECORDS_MAX:
                break
        if not ahead and (
            self._pieces is not None or self._awaited is not None or self.ahead_end <= scan_from
        ):
            self.is_later = True  # the last piece was empty: the log may have more batches
            return False
        return is_read

    def _decode_piece(self) -> None:
        assert self._pieces is not None
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = None
            self.ahead_end = self._pieces_end
        elif piece:
            self.ahead.extend(piece)
            self.ahead_end = piece[-1].offset + 1

    def _decode_batches(self, scan_from: int) -> bool:
        is_read = False
        ahead, batches = self.ahead, self._batches
        while batches and len(ahead) < limits.WINDOW_RECORDS_MAX:
            data = batches[0]
            header = parse_header(data)
            if not (header.is_control or header.next_offset <= scan_from):
                if not _is_small(header):
                    if is_read and ahead:
                        return True  # return the records of the small batches first
                    if not self._begin_pieces(data, header, scan_from):
                        return is_read
                    batches.popleft()
                    return True
                ahead.extend(self._decode(data, header, scan_from))
            self.ahead_end = header.next_offset
            batches.popleft()
            is_read = True
        return is_read

    def _begin_pieces(self, data: bytes, header: BatchHeader, from_offset: int) -> bool:
        opened: OpenedBatch | MalformedBatch | None
        if self._awaited is None:
            opened = self._open_now(data, header)
            if opened is None:
                self._awaited = self._open(data, header)
                return False
        elif not self._awaited.done():
            return False
        else:
            opened = self._awaited.result()
            self._awaited = None
        self._pieces = self._pieces_of(opened, header, from_offset)
        self._pieces_end = header.next_offset
        return True

    def _decode(self, data: bytes, header: BatchHeader, from_offset: int) -> list[Record]:
        """Return the records of a batch. Records of an unreadable batch are marked as expired."""
        try:
            return decode_batch(data, origin=self._origin, from_offset=from_offset)
        except MalformedBatch as error:
            pieces = self._unreadable(header, from_offset, error)
            return [record for piece in pieces for record in piece]

    def _pieces_of(
        self, opened: OpenedBatch | MalformedBatch, header: BatchHeader, from_offset: int
    ) -> Iterator[list[Record]]:
        if isinstance(opened, MalformedBatch):
            yield from self._unreadable(header, from_offset, opened)
            return
        end = from_offset
        try:
            for piece in opened.pieces(from_offset):
                if piece:
                    end = piece[-1].offset + 1
                yield piece
        except MalformedBatch as error:
            yield from self._unreadable(header, end, error)

    def _unreadable(
        self, header: BatchHeader, from_offset: int, error: MalformedBatch
    ) -> Iterator[list[Record]]:
        place: dict[str, object] = {"topic": self.topic.name, "partition": self._index}
        batch = {"offset": header.base_offset, "records": header.count, "reason": str(error)}
        log_.error("skipping a batch that cannot be decoded", extra=place | batch)
        start = max(from_offset, header.base_offset)
        end = start + min(header.next_offset - start, header.count, UNREADABLE_RECORDS_MAX)
        for first in range(start, end, PIECE_RECORDS):
            last = min(first + PIECE_RECORDS, end)
            yield [Record(offset, LONG_AGO_MS, _UNREADABLE) for offset in range(first, last)]

    def read(self, offset: int) -> Record | Reading | None:
        """Return one record, None if it is damaged, or LATER if ``read_late`` must be used."""
        opened = self._opened.find(self, offset) if self._opened.kept else None
        if opened is None:
            if self._openings and any(start <= offset < end for start, end in self._openings):
                return Reading.LATER
            try:
                data = self.log.read(offset, bytes_max=1)[0]
            except Damaged as damage:
                self._on_damage(damage)
                return None
            header = parse_header(data)
            if _is_small(header):
                return decode_at(data, offset, origin=self._origin, header=header)
            opened = self._open_now(data, header)
            if opened is None:
                self._open(data, header)
                return Reading.LATER
            for _ in opened.index():
                pass  # a short loop: the batch has few records
            self._opened.add(self, opened)
        return opened.find(offset)

    async def read_late(self, offset: int) -> Record | None:
        record = self.read(offset)
        while record is Reading.LATER:
            openings = self._openings.items()
            opening = next(one for (start, end), one in openings if start <= offset < end)
            found = await asyncio.shield(opening)
            if isinstance(found, MalformedBatch):
                return None
            record = found.find(offset)
        assert not isinstance(record, Reading)
        return record

    def _peek(
        self,
        found: list[Peeked],
        start: int,
        end: int,
        count: int,
        read_bytes_max: int,
        peeked: Callable[[Record], Peeked | None],
    ) -> Iterator[tuple[int, Opening | None]]:
        """Call ``peeked`` for each record, and add up to ``count`` results to ``found``. After each
        step, yields the offset to continue from and the task to wait for, if any."""
        offset = end if start < 0 else max(start, self.log.start_offset)
        read_bytes = 0
        while offset < end and len(found) < count and read_bytes < PEEK_BYTES_MAX:
            batches = self.log.read(offset, bytes_max=read_bytes_max, up_to=end)
            if not batches:
                break
            for data in batches:
                header = parse_header(data)
                read_bytes += len(data)
                if not header.is_control:
                    opened: OpenedBatch | MalformedBatch | None = self._open_now(data, header)
                    if opened is None:
                        opening = self._open(data, header)
                        yield offset, opening
                        opened = opening.result()
                    if isinstance(opened, MalformedBatch):
                        raise opened
                    for piece in opened.pieces(offset):
                        for record in piece:
                            if len(found) == count:
                                yield record.offset, None
                                return
                            one = peeked(record)
                            if one is not None:
                                found.append(one)
                        yield offset, None
                offset = header.next_offset
        yield offset, None

    async def peek(
        self, start: int, end: int, count: int, peeked: Callable[[Record], Peeked | None]
    ) -> tuple[list[Peeked], int]:
        found: list[Peeked] = []
        steps = self._peek(found, start, end, count, limits.READ_BYTES_MAX, peeked)
        for offset, opening in steps:
            next_offset = offset
            await (asyncio.sleep(0) if opening is None else asyncio.wait((opening,)))
        return found, next_offset

    def peek_first(
        self, start: int, end: int, peeked: Callable[[Record], Peeked | None]
    ) -> Peeked | None:
        """Return the first result of ``peeked``, or None if there is none or reading takes long."""
        found: list[Peeked] = []
        for _, opening in self._peek(found, start, end, 1, PEEK_FIRST_BYTES, peeked):
            if opening is not None:
                return None
        return found[0] if found else None

    def _open_now(self, data: bytes, header: BatchHeader) -> OpenedBatch | None:
        """Open a batch, or return None if that would take more than a few milliseconds."""
        opened = self._opened.find(self, header.base_offset)
        if opened is None and header.count <= OPENED_NOW_RECORDS_MAX:
            try:
                blob = unpacked_now(data, header)
            except MalformedBatch:
                return None  # the task reports the error
            if blob is not None:
                opened = OpenedBatch(header, blob, origin=self._origin)
        return opened

    def _open(self, data: bytes, header: BatchHeader) -> Opening:
        key = (header.base_offset, header.next_offset)
        opening = self._openings.get(key)
        if opening is None:
            opening = asyncio.create_task(self._opened_late(data, header), name="open a batch")
            self._openings[key] = opening
            opening.add_done_callback(lambda _: self._openings.pop(key, None))
        return opening

    async def _opened_late(self, data: bytes, header: BatchHeader) -> OpenedBatch | MalformedBatch:
        try:
            blob = await unpacked(data, header, tenant=self.topic.account)
        except MalformedBatch as error:
            return error
        opened = OpenedBatch(header, blob, origin=self._origin)
        await in_slices(opened.index())
        self._opened.add(self, opened)
        return opened


def _is_small(header: BatchHeader) -> bool:
    return (
        header.count <= PIECE_RECORDS
        and not header.attributes & ATTR_CODEC_MASK
        and header.length <= PIECE_BYTES
    )
