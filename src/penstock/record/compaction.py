"""Compaction of a keyed log: batches from which records are removed.

Nothing that stays moves: a record keeps its offset, its time and its bytes, and a batch keeps its
base offset and the span of offsets it covers, so that batches of a log follow each other without
gaps. A batch without remaining records stays as a header of 61 bytes, for its span and for the
producer's last sequence; adjacent ones that no sequence needs are merged.

Readers must see that a key was deleted (a record without a value). The first compaction that finds
such a record stores until when it is kept: in place of the batch's base time, with the
delete-horizon bit set, as Kafka does. The time deltas of the records are rewritten, so that their
times stay the same.

A batch that cannot be opened is kept as it is: producers' batches are stored unopened, and a
malformed one must not stop the compaction of the rest. Control batches are kept as they are.
"""

from collections.abc import Callable

from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_CODEC_MASK,
    ATTR_DELETE_HORIZON,
    ATTR_TRANSACTIONAL,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    NO_PRODUCER,
    BatchHeader,
    parse_header,
)
from penstock.record.compression import compress
from penstock.record.crc32c import crc32c
from penstock.record.malformed import MalformedBatch
from penstock.record.record import records_blob
from penstock.record.slices import RecordSlice, slices_of
from penstock.record.varint import encode_varint

SPAN_MAX = 2**31  # offsets in one batch: its last offset delta is an i32
_CRC_AT = 17
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1

# Whether the record with this key at this offset is still needed.
Wanted = Callable[[bytes, int], bool]


def keys_of(batch: bytes) -> list[tuple[bytes, int]]:
    """Return key and offset of every record with a key; none if the batch cannot be opened."""
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
    batch: bytes,
    *,
    is_wanted: Wanted,
    tombstone_ms: int,
    now_ms: int,
    is_gone_kept: bool = False,
) -> bytes:
    """Return the batch without its unwanted records; the same object if nothing changes. Records
    without a key are dropped. Records without a value stay until their horizon has passed, or, with
    ``is_gone_kept``, always."""
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
    """Return a batch of the same span without records, with its producer's sequences or without."""
    attributes = header.attributes & ATTR_APPEND_TIME
    if with_producer:
        attributes |= header.attributes & ATTR_TRANSACTIONAL
    else:
        header = header._replace(producer_id=NO_PRODUCER, producer_epoch=-1, base_sequence=-1)
    return _pack(header._replace(attributes=attributes, count=0), b"")


def merge_empty(first: bytes, second: bytes) -> bytes | None:
    """Return one empty batch for two adjacent ones; None if they cannot be merged. The caller has
    decided whether a producer's sequences may be forgotten (``empty_batch``)."""
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
    return _pack(merged, b"")


def is_bare(header: BatchHeader) -> bool:
    """Return whether a batch only covers offsets: no records, not control, no producer."""
    return not header.count and not header.is_control and header.producer_id == NO_PRODUCER


def _encode(
    header: BatchHeader, blob: bytes, kept: list[RecordSlice], *, horizon_ms: int | None = None
) -> bytes | None:
    """Return the batch; None if times are too far apart for a delta, or if it is now too large
    because its producer compresses better than this node."""
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
    batch = _pack(changed, compress(attributes & ATTR_CODEC_MASK, b"".join(parts)))
    return batch if len(batch) <= BATCH_BYTES_MAX else None


def _pack(header: BatchHeader, body: bytes) -> bytes:
    length = HEADER_BYTES - LENGTH_FROM + len(body)
    batch = bytearray(HEADER.pack(*header._replace(length=length, crc=0)) + body)
    crc = crc32c(memoryview(batch)[CRC_FROM:])
    batch[_CRC_AT : _CRC_AT + 4] = crc.to_bytes(4, "big")
    return bytes(batch)
