"""Rows of a compacted internal topic, where the newest value of each key is valid.

    key    = kind u8 · MessagePack array of the key's fields
    value  = version u8 (0) · MessagePack array of the value's fields, or null if deleted

To change a layout, add fields at the end with a default value, so that older rows still decode. To
change the meaning of a field, raise the version and keep decoding the old one.

A snapshot has a frame: magic 4 B · CRC-32 of the rest 4 B · MessagePack."""

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.model.errors import Damaged

T = TypeVar("T")

_VERSION = 0
_VERSION_BYTE = bytes((_VERSION,))

KeyFields = tuple[Any, ...]


class Row(NamedTuple):
    key: bytes
    value: bytes | None


class RowCodec:
    """Encodes and decodes rows. ``layouts`` maps each kind to the types of its key and value."""

    def __init__(self, layouts: Mapping[int, tuple[Any, type[msgspec.Struct]]]) -> None:
        self._decoders = {
            kind: (msgspec.msgpack.Decoder(key_type), msgspec.msgpack.Decoder(value_type))
            for kind, (key_type, value_type) in layouts.items()
        }
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode

    def encode(self, kind: int, key: KeyFields, value: msgspec.Struct | None) -> Row:
        encoded_key = bytes((kind,)) + self._encode(key)
        return Row(encoded_key, None if value is None else _VERSION_BYTE + self._encode(value))

    def decode(self, key: bytes, value: bytes | None) -> tuple[int, KeyFields, Any]:
        """Decode a row. Raises ValueError if it is damaged or has an unknown kind or version."""
        decoders = self._decoders.get(key[0]) if key else None
        if decoders is None:
            raise ValueError(f"the row with key {key[:16].hex()} has an unknown kind")
        if value is not None and value[:1] != _VERSION_BYTE:
            raise ValueError(f"row of kind {key[0]} has version {value[:1].hex()}, not {_VERSION}")
        try:
            fields = decoders[0].decode(key[1:])
            return key[0], fields, None if value is None else decoders[1].decode(value[1:])
        except msgspec.MsgspecError as error:
            raise ValueError(f"row of kind {key[0]} is malformed: {error}") from error


def framed(magic: bytes, value: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(value)
    return magic + zlib.crc32(body).to_bytes(4, "big") + body


def unframed(data: bytes, magic: bytes, decoder: "msgspec.msgpack.Decoder[T]", name: str) -> T:
    """Check and decode a snapshot. Raises Damaged if it is damaged or in another format."""
    if data[:4] != magic:
        raise Damaged(name, 0, f"the {name} has an unknown format version")
    body = data[8:]
    if zlib.crc32(body) != int.from_bytes(data[4:8], "big"):
        raise Damaged(name, 4, "checksum mismatch")
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Damaged(name, 8, str(error)) from error
