"""Positions of records in the decompressed bytes of a batch. Compacting and sealing a batch keep
most of these bytes as they are.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.record.batch import BatchHeader
from penstock.record.malformed import MalformedBatch
from penstock.record.varint import decode_varint


class RecordSlice(NamedTuple):
    """Positions of one record's parts, and the parts that are needed decoded."""

    offset_delta: int
    time_delta: int
    key: bytes | None
    is_tombstone: bool  # it has no value
    start: int  # of the length field
    fields_at: int  # after the length field
    offset_at: int  # after the time delta
    key_at: int
    value_at: int
    end: int


def slices_of(blob: bytes, header: BatchHeader) -> Iterator[RecordSlice]:
    """Yield each record's slice. Raises MalformedBatch. One loop with the short varints inlined: a
    call per field would double the time, and compaction opens every record of a log twice."""
    last_delta, total = header.last_offset_delta, len(blob)
    make, position = tuple.__new__, 0
    try:
        for _ in range(header.count):
            start = position
            size, fields_at = decode_varint(blob, start)
            end = fields_at + size
            if size < 0 or end > total:
                raise MalformedBatch(f"a record of {size} bytes runs past the end of the batch")
            time_delta, offset_at = blob[fields_at + 1], fields_at + 2
            if time_delta < 0x80:
                time_delta = (time_delta >> 1) ^ -(time_delta & 1)
            else:
                time_delta, offset_at = decode_varint(blob, fields_at + 1)
            delta, key_at = blob[offset_at], offset_at + 1
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, key_at = decode_varint(blob, offset_at)
            if not 0 <= delta <= last_delta:
                raise MalformedBatch(f"offset delta {delta} is outside of the batch")
            key_size, value_at = decode_varint(blob, key_at)
            key = None
            if key_size >= 0:
                key = blob[value_at : value_at + key_size]
                value_at += key_size
            value_size, headers_at = decode_varint(blob, value_at)
            if min(key_size, value_size) < -1 or headers_at + max(0, value_size) >= end:
                raise MalformedBatch("a record's fields do not add up to its length")
            is_tombstone = value_size < 0
            where = (start, fields_at, offset_at, key_at, value_at, end)
            yield make(RecordSlice, (delta, time_delta, key, is_tombstone, *where))
            position = end
    except IndexError:
        raise MalformedBatch("a record runs past the end of the batch") from None
    if position != total:
        raise MalformedBatch(f"{total - position} bytes behind the last record")
