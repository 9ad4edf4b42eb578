"""Log compaction: removes records from batches if a later record has the same key.

A record keeps its offset, timestamp and bytes, and a batch keeps its range of offsets, so that
there are no gaps. A batch without records stays as a header, for its offsets and the producer's
last sequence number; adjacent empty batches without a producer are merged.

Readers must see that a key was deleted (a tombstone, a record without a value). As in Kafka, the
first compaction that finds a tombstone replaces the batch's base timestamp by the time until which
the tombstone is kept, and sets the delete-horizon bit. Control batches, and batches that cannot be
decoded, are not changed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_CODEC_MASK,
    ATTR_DELETE_HORIZON,
    ATTR_TRANSACTIONAL,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    NO_PRODUCER,
    BatchHeader,
    parse_header,
    with_body,
)
from penstock.record.compression import compress
from penstock.record.malformed import MalformedBatch
from penstock.record.record import RecordSlice, encode_varint, records_blob, slices_of

SPAN_MAX = 2**31  # the last offset delta is an i32
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1

# Returns whether the record with this key at this offset is still needed.
Wanted = Callable[[bytes, int], bool]


def keys_of(batch: bytes) -> list[tuple[bytes, int]]:
    """Return key and offset of all records with a key, or nothing if the batch is unreadable."""
    header = parse_header(batch)
    try:
        blob = records_blob(batch, header)
        base_offset = header.base_offset
        return [
            (one.key, base_offset + one.offset_delta)
            for one in slices_of(blob, header)
            if one.key is not None
        ]
    except MalformedBatch:
        return []


def compact_batch(
    batch: bytes, *, is_wanted: Wanted, tombstone_ms: int, now_ms: int, is_gone_kept: bool = False
) -> bytes:
    """Return the batch without outdated records, or the same object if nothing changes. Tombstones
    are kept until their time is over, or forever with ``is_gone_kept``."""
    header = parse_header(batch)
    if header.is_control or not header.count:
        return batch
    try:
        blob = records_blob(batch, header)
        records = list(slices_of(blob, header))
    except MalformedBatch:
        return batch
    horizon_ms = header.base_timestamp if header.attributes & ATTR_DELETE_HORIZON else None
    is_past = horizon_ms is not None and horizon_ms <= now_ms and not is_gone_kept
    kept = [
        one
        for one in records
        if one.key is not None
        and is_wanted(one.key, header.base_offset + one.offset_delta)
        and not (one.is_tombstone and is_past)
    ]
    if not kept:
        return empty_batch(header, with_producer=True)
    if horizon_ms is None and any(one.is_tombstone for one in kept):
        stamped = _encode(header, blob, kept, horizon_ms=now_ms + tombstone_ms)
        if stamped is not None:
            return stamped
    if len(kept) == len(records):
        return batch
    return _encode(header, blob, kept) or batch


def empty_batch(header: BatchHeader, *, with_producer: bool) -> bytes:
    """Return a batch with the same offsets but no records. ``with_producer`` keeps the producer."""
    attributes = header.attributes & ATTR_APPEND_TIME
    if with_producer:
        attributes |= header.attributes & ATTR_TRANSACTIONAL
    else:
        header = header._replace(producer_id=NO_PRODUCER, producer_epoch=-1, base_sequence=-1)
    return with_body(header._replace(attributes=attributes, count=0), b"")


def merge_empty(first: bytes, second: bytes) -> bytes | None:
    """Merge two adjacent empty batches, or return None if they cannot be merged."""
    one, two = parse_header(first), parse_header(second)
    span = two.next_offset - one.base_offset
    if (
        not (is_bare(one) and is_bare(two))
        or one.next_offset != two.base_offset
        or one.leader_epoch != two.leader_epoch
        or span > SPAN_MAX
    ):
        return None
    merged = one._replace(
        attributes=0,
        last_offset_delta=span - 1,
        max_timestamp=max(one.max_timestamp, two.max_timestamp),
    )
    return with_body(merged, b"")


def is_bare(header: BatchHeader) -> bool:
    """Return whether a batch has neither records nor a producer and is not a control batch."""
    return not header.count and not header.is_control and header.producer_id == NO_PRODUCER


def _encode(
    header: BatchHeader, blob: bytes, kept: list[RecordSlice], *, horizon_ms: int | None = None
) -> bytes | None:
    """Return a batch of the kept records, or None if a timestamp or the batch is too large."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | ATTR_DELETE_HORIZON, horizon_ms
        shift = header.base_timestamp - horizon_ms
        parts = []
        for one in kept:
            time_delta = one.time_delta + shift
            if not _TIME_MIN <= time_delta <= _TIME_MAX:
                return None
            attribute = blob[one.fields_at : one.fields_at + 1]
            rest = attribute + encode_varint(time_delta) + blob[one.offset_at : one.end]
            parts.append(encode_varint(len(rest)) + rest)
    else:
        parts = [blob[one.start : one.end] for one in kept]
    max_timestamp = header.max_timestamp
    if not header.is_append_time:
        max_timestamp = header.base_timestamp + max(one.time_delta for one in kept)
        if not _TIME_MIN <= max_timestamp <= _TIME_MAX:
            return None
    changed = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        count=len(kept),
    )
    batch = with_body(changed, compress(attributes & ATTR_CODEC_MASK, b"".join(parts)))
    return batch if len(batch) <= BATCH_BYTES_MAX else None


class Covered(NamedTuple):
    data: bytes  # consecutive whole batches
    base_offset: int  # of the first batch
    next_offset: int  # after the last batch


def covered(
    buffers: Sequence[bytes | memoryview], start: int, end: int, *, next_offset: int
) -> Covered:
    """Return the batches from ``start`` to the lower of ``next_offset`` and ``end``, with gaps
    filled by empty batches. The first batch may begin below ``start``. Raises MalformedBatch if a
    batch crosses ``end``."""
    if _is_plain(buffers, start, end, next_offset):
        return Covered(b"".join(buffers), start, next_offset)
    parts: list[bytes | memoryview] = []
    base = at = start
    last: BatchHeader | None = None
    for buffer in buffers:
        position = 0
        while position < len(buffer):
            header = parse_header(buffer, position)
            total = header.total_bytes
            if header.base_offset >= end:
                last = last or header
                break
            if is_bare(header) and total == HEADER_BYTES:
                # Empty batches may have been merged since, and may extend beyond both ends.
                header = spanned(header, max(header.base_offset, at), min(header.next_offset, end))
            elif header.next_offset > end:
                raise MalformedBatch(f"a batch extends beyond the end offset {end}")
            if header.base_offset < at:
                if parts or header.next_offset <= at:
                    raise MalformedBatch(
                        f"base offset {header.base_offset} is below the expected {at}"
                    )
                base = header.base_offset
            elif header.base_offset > at:
                parts += _bare(header, at, header.base_offset)
            is_cut = is_bare(header) and total == HEADER_BYTES
            whole = buffer[position : position + total]
            parts.append(empty_batch(header, with_producer=False) if is_cut else whole)
            at, last = header.next_offset, header
            position += total
    rest = min(next_offset, end)
    if rest > at and last is not None:
        parts += _bare(last, at, rest)
        at = rest
    return Covered(b"".join(parts), base, at)


def _is_plain(
    buffers: Sequence[bytes | memoryview], start: int, end: int, next_offset: int
) -> bool:
    """Return whether the batches have no gaps, so that they can be used unchanged."""
    unpack, at = HEADER.unpack_from, start
    for buffer in buffers:
        position, size = 0, len(buffer)
        while position + HEADER_BYTES <= size:
            fields = unpack(buffer, position)
            length = fields[1]
            if fields[0] != at or fields[6] < 0 or length < HEADER_BYTES - LENGTH_FROM:
                return False
            at += fields[6] + 1
            position += length + LENGTH_FROM
        if position != size:
            return False
    return at == next_offset <= end


def spanned(header: BatchHeader, start: int, end: int) -> BatchHeader:
    return header._replace(base_offset=start, last_offset_delta=end - start - 1)


def _bare(like: BatchHeader, start: int, end: int) -> list[bytes]:
    """Return empty batches from ``start`` to ``end``, with the epoch and timestamp of ``like``."""
    found = []
    while start < end:
        until = min(end, start + SPAN_MAX)
        header = spanned(like, start, until)._replace(base_timestamp=like.max_timestamp)
        found.append(empty_batch(header, with_producer=False))
        start = until
    return found
