"""Control batches: events about records, in the same log. The key of a control record has a version
(i16, 0) and a type (i16), which defines the value. Kafka clients skip control batches. Types 0 and
1 are Kafka's transaction markers; Penstock's types start at 64 (``cursor/``)."""

import struct
from collections.abc import Iterator, Sequence

from penstock.model.ports import Marker
from penstock.record.batch import ATTR_CONTROL, ATTR_TRANSACTIONAL, encode_batch, parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.record import encode_record, encode_varint, iter_records

TYPE_ABORT = 0
TYPE_COMMIT = 1

KEY = struct.Struct(">hh")
KEY_VERSION = 0
assert KEY.size == 4

_MARKER_VALUE = struct.Struct(">hi")
_KEY_LENGTH = encode_varint(KEY.size)


def encode_control_batch(
    entries: Sequence[tuple[int, bytes]], *, base_offset: int, leader_epoch: int, timestamp: int
) -> bytes:
    records = []
    for delta, (kind, value) in enumerate(entries):
        body = b"".join(
            (
                b"\x00\x00",  # attributes, time delta
                encode_varint(delta),
                _KEY_LENGTH,
                KEY.pack(KEY_VERSION, kind),
                encode_varint(len(value)),
                value,
                b"\x00",  # no headers
            )
        )
        records.append(encode_varint(len(body)) + body)
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        attributes=ATTR_CONTROL,
    )


def encode_marker_batch(marker: Marker, *, timestamp: int) -> bytes:
    kind = TYPE_COMMIT if marker.is_commit else TYPE_ABORT
    record = encode_record(
        offset_delta=0,
        timestamp_delta=0,
        key=KEY.pack(KEY_VERSION, kind),
        value=_MARKER_VALUE.pack(0, marker.coordinator_epoch),
    )
    return encode_batch(
        [record],
        base_offset=0,
        leader_epoch=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        attributes=ATTR_CONTROL | ATTR_TRANSACTIONAL,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
    )


def iter_control(batch: bytes) -> Iterator[tuple[int, int, bytes]]:
    assert parse_header(batch).is_control, "not a control batch"
    for record in iter_records(batch):
        key = record.key
        if key is None or len(key) < KEY.size:
            raise MalformedBatch(f"the control record at offset {record.offset} has no type")
        _version, kind = KEY.unpack_from(key)
        yield record.offset, kind, record.value or b""
