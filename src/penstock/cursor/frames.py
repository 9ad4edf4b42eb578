"""The frame of a snapshot in a checkpoint: magic 4 B · CRC-32 of the rest 4 B · MessagePack."""

import zlib
from typing import TypeVar

import msgspec

from penstock.model.errors import Damaged

T = TypeVar("T")


def framed(magic: bytes, value: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(value)
    return magic + zlib.crc32(body).to_bytes(4, "big") + body


def unframed(data: bytes, magic: bytes, decoder: "msgspec.msgpack.Decoder[T]", name: str) -> T:
    """Return the value. Raises Damaged unless ``framed`` made exactly these bytes."""
    if data[:4] != magic:
        raise Damaged(name, 0, f"not a {name} of a known version")
    body = data[8:]
    if zlib.crc32(body) != int.from_bytes(data[4:8], "big"):
        raise Damaged(name, 4, "checksum mismatch")
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Damaged(name, 8, str(error)) from error
