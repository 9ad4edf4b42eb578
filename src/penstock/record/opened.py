"""Decodes a large batch a few records at a time, because a million records in 64 MiB would take a
second. ``index`` stores the position of every 64th record. The generators here yield at least every
few milliseconds."""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from penstock.model.limits import KIB
from penstock.model.message import Record
from penstock.record.batch import BatchHeader
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_some
from penstock.record.record import decode_varint, heads_of

MARK_RECORDS: Final = 64
PIECE_RECORDS: Final = 256  # decoded in about a millisecond
PIECE_BYTES: Final = 32 * KIB  # decoded in 10 ms at most
STEP_RECORDS: Final = 2_048  # skipped between two yields


class OpenedBatch:
    __slots__ = ("_blob", "_malformed", "_offsets", "_places", "header", "largest", "origin")

    def __init__(self, header: BatchHeader, blob: bytes | memoryview, *, origin: bytes) -> None:
        self.header = header
        self.origin = origin
        self.largest = 0  # size of the largest record, set by ``index``
        self._blob = blob
        self._offsets: list[int] = []  # of every 64th record
        self._places: list[tuple[int, int]] = []  # their numbers and positions in the blob
        self._malformed: MalformedBatch | None = None  # set if the index ends early

    @property
    def size_bytes(self) -> int:
        return len(self._blob) + 128 * len(self._offsets)

    def index(self) -> Generator[None, None, None]:
        """Find the positions of records. Run this generator to its end before other calls."""
        try:
            yield from self._walk()
        except IndexError:
            self._malformed = MalformedBatch("a record runs past the end of the batch")
        except MalformedBatch as error:
            self._malformed = error

    def _walk(self) -> Generator[None, None, None]:
        blob, total = self._blob, len(self._blob)
        base_offset, last_delta = self.header.base_offset, self.header.last_offset_delta
        end = largest = 0
        for number in range(self.header.count):
            start = end
            byte = blob[start]
            if byte < 0x80:
                size, position = (byte >> 1) ^ -(byte & 1), start + 1
            else:
                size, position = decode_varint(blob, start)
            end = position + size
            if size < 0 or end > total:
                raise MalformedBatch(f"a record of {size} bytes runs past the end of the batch")
            if size > largest:
                largest = size
            if number % MARK_RECORDS == 0:
                _, position = decode_varint(blob, position + 1)
                delta, position = decode_varint(blob, position)
                if not 0 <= delta <= last_delta:
                    raise MalformedBatch(f"offset delta {delta} is outside the batch")
                self._offsets.append(base_offset + delta)
                self._places.append((number, start))
                if number % STEP_RECORDS == 0:
                    yield None
        if end != total:
            raise MalformedBatch(f"there are {total - end} bytes after the last record")
        self.largest = largest

    def pieces(self, from_offset: int) -> Iterator[list[Record]]:
        number, position = self._place_before(from_offset)
        while number < self.header.count:
            records, done, position = self._decode(number, position, from_offset)
            number += done
            yield records
        if self._malformed is not None:
            raise self._malformed

    def find(self, offset: int) -> Record | None:
        number, position = self._place_before(offset)
        end = min(number + MARK_RECORDS, self.header.count)
        try:
            while number < end:
                records, done, position = self._decode(number, position, offset)
                for record in records:
                    if record.offset == offset:
                        return record
                number += done
        except MalformedBatch:
            pass
        return None

    def _place_before(self, offset: int) -> tuple[int, int]:
        index = bisect_right(self._offsets, offset) - 1
        return self._places[index] if index >= 0 else (0, 0)

    def _decode(
        self, number: int, position: int, from_offset: int
    ) -> tuple[list[Record], int, int]:
        blob, header = self._blob, self.header
        count = min(PIECE_RECORDS, header.count - number)
        if isinstance(blob, bytes):
            return decode_some(blob, position, count, header, self.origin, from_offset, PIECE_BYTES)
        # ``decode_some`` needs bytes, so copy the whole records of one piece.
        end = position
        for done in range(count):
            if end - position >= PIECE_BYTES:
                count = done
                break
            size, at = decode_varint(blob, end)
            end = at + size
            if size < 0 or end > len(blob):
                raise MalformedBatch(f"a record of {size} bytes runs past the end of the batch")
        copied = bytes(blob[position:end])
        records, done, _ = decode_some(copied, 0, count, header, self.origin, from_offset)
        return records, done, end


class BadRecord(NamedTuple):
    """A record without a key (``timestamp_ms`` is None) or with an invalid timestamp."""

    number: int  # index within the batch
    offset_delta: int
    timestamp_ms: int | None


def bad_records(
    blob: bytes | memoryview,
    header: BatchHeader,
    *,
    needs_key: bool,
    earliest_ms: int,
    latest_ms: int,
) -> Generator[None, None, list[BadRecord]]:
    bad: list[BadRecord] = []
    base_ms = header.base_timestamp
    for number, (delta, delta_ms, _, _, _, key_at, _) in enumerate(heads_of(blob, header), 1):
        at_ms = base_ms + delta_ms
        if needs_key and blob[key_at] & 1:  # the key's length is negative
            bad.append(BadRecord(number - 1, delta, None))
        elif not earliest_ms <= at_ms <= latest_ms and at_ms != -1:
            bad.append(BadRecord(number - 1, delta, at_ms))
        if number % STEP_RECORDS == 0:
            yield None
    return bad


def first_at(
    blob: bytes | memoryview, header: BatchHeader, timestamp_ms: int, *, start_offset: int = 0
) -> Generator[None, None, tuple[int, int] | None]:
    """Return offset and timestamp of the first record at or after a time, else None."""
    base_ms, is_append_time = header.base_timestamp, header.is_append_time
    for number, (delta, delta_ms, *_) in enumerate(heads_of(blob, header)):
        if number % STEP_RECORDS == STEP_RECORDS - 1:
            yield None
        at_ms = header.max_timestamp if is_append_time else base_ms + delta_ms
        if at_ms >= timestamp_ms and header.base_offset + delta >= start_offset:
            return header.base_offset + delta, at_ms
    return None
