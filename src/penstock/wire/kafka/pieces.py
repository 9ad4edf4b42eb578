"""Lengths, texts and topics in both encodings, for the codecs that are written by hand.

    compact    varint of length + 1, 0 for null      (flexible versions)
    plain      i16 for texts, i32 for arrays and bytes, −1 for null

A topic is a text in older versions and sixteen bytes of id in newer ones."""

import struct

from penstock.wire.kafka.primitives import UUID_BYTES, UVARINT, not_uuid

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
