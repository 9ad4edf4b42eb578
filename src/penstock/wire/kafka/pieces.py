"""Lengths, texts and topics in both encodings, for the codecs that are written by hand.

    compact    varint of length + 1, 0 for null      (flexible versions)
    plain      i16 for texts, i32 for arrays and bytes, −1 for null

A topic is a text in older versions and sixteen bytes of id in newer ones."""

import struct

from penstock.wire.kafka.primitives import (
    UUID_BYTES,
    UVARINT,
    ZERO_UUID,
    absent,
    not_uuid,
    oversized,
    read_uvarint,
)

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


def encode_count(count: int, is_compact: bool) -> bytes:
    return UVARINT[count + 1] if is_compact else _I32.pack(count)


def encode_text(text: str, is_compact: bool) -> bytes:
    raw = text.encode()
    return (UVARINT[len(raw) + 1] if is_compact else _I16.pack(len(raw))) + raw


def encode_nullable_text(text: str | None, is_compact: bool) -> bytes:
    if text is None:
        return b"\x00" if is_compact else b"\xff\xff"
    return encode_text(text, is_compact)


def encode_topic(name: str, topic_id: bytes, *, is_id: bool, is_compact: bool) -> bytes:
    if not is_id:
        return encode_text(name, is_compact)
    if len(topic_id) != UUID_BYTES:
        raise not_uuid("topic_id")
    return topic_id


def read_size(data: bytes | memoryview, position: int, is_compact: bool) -> tuple[int, int]:
    """Return a length, −1 for null, and the position after it."""
    if is_compact:
        size, position = read_uvarint(data, position)
        return size - 1, position
    (size,) = _I32.unpack_from(data, position)
    if size < -1:
        raise absent("an array")
    return size, position + 4


def read_count(
    data: bytes | memoryview, position: int, least: int, is_compact: bool
) -> tuple[int, int]:
    """Return the length of an array whose elements have at least ``least`` bytes."""
    count, position = read_size(data, position, is_compact)
    if not 0 <= count <= (len(data) - position) // least:
        raise oversized("an array")
    return count, position


def read_topic(
    data: bytes | memoryview, position: int, *, is_id: bool, is_compact: bool
) -> tuple[str, bytes, int]:
    """Return name or id, and the position after it."""
    if is_id:
        stop = position + UUID_BYTES
        return "", bytes(data[position:stop]), stop
    if is_compact:
        size, position = read_uvarint(data, position)
        size -= 1
    else:
        (size,) = _I16.unpack_from(data, position)
        position += 2
    if size < 0:
        raise absent("name")
    stop = position + size
    return str(data[position:stop], "utf-8"), ZERO_UUID, stop
