"""Functions and errors that compiled and hand-written codecs share. The formats are:

flexible versions     length + 1 as an unsigned varint, 0 for null; a section of tagged fields
                      after every struct
older versions        length as i16 (strings) or i32 (everything else), −1 for null

unsigned varint       groups of seven bits, lowest first, at most five bytes, at most 2³¹ − 1
tagged fields         varint count, then per field: varint tag, varint size, bytes
"""

import struct
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from penstock.model.limits import KAFKA_PARTITIONS_MAX

Buffer = bytes | bytearray | memoryview
Add = Callable[[bytes | memoryview], None]

ZERO_UUID: Final = bytes(16)  # "no id"
UUID_BYTES: Final = 16

# Errors that compiled readers and writers raise for invalid data and for invalid values.
BROKEN: Final = (IndexError, struct.error, UnicodeDecodeError)
UNFIT: Final = (struct.error, TypeError, AttributeError, UnicodeEncodeError)

_VARINT_BYTES_MAX = 5
_VARINT_MAX = 0x7FFF_FFFF
_TABLE_SIZE = 4_096
_INTS_MAX = 256  # longer arrays are rare


class Malformed(ValueError):
    """The bytes are not a valid message. Decoders raise this error for any invalid bytes."""


class TooManyEntries(Malformed):
    def __init__(self, name: str, count: int, bound: int) -> None:
        super().__init__(f"{name} has {count} elements; at most {bound} are allowed in one request")
        self.name = name
        self.count = count
        self.bound = bound


class UnsupportedVersion(ValueError):
    """The version is not supported, or a value cannot be sent in that version."""

    def __init__(self, what: str, version: int, reason: str = "") -> None:
        super().__init__(f"{what} version {version} {reason or 'is not supported'}")
        self.what = what
        self.version = version


class Unencodable(ValueError):
    """A value cannot be encoded, because of a bug in the code that created the value."""


class Message(msgspec.Struct, frozen=True, gc=False): ...


def encode_uvarint(value: int) -> bytes:
    if not 0 <= value <= _VARINT_MAX:
        raise struct.error(f"{value} is not a valid length")
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Uvarints(dict[int, bytes]):
    def __missing__(self, value: int) -> bytes:
        return encode_uvarint(value)


class _Ints(dict[int, struct.Struct]):
    def __init__(self, code: str) -> None:
        super().__init__((count, struct.Struct(f">{count}{code}")) for count in range(_INTS_MAX))
        self._code = code

    def __missing__(self, count: int) -> struct.Struct:
        if count < 0:
            raise struct.error("an array has a negative length")
        return struct.Struct(f">{count}{self._code}")


UVARINT: Final = _Uvarints((value, encode_uvarint(value)) for value in range(_TABLE_SIZE))
INT8S: Final = _Ints("b")
INT16S: Final = _Ints("h")
INT32S: Final = _Ints("i")
INT64S: Final = _Ints("q")


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Return a varint and the position after it. Raises IndexError if the data ends early."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _VARINT_MAX:
                raise Malformed(f"the length {value} is too large")
            return value, position + 1
    raise Malformed(f"a varint is longer than {_VARINT_BYTES_MAX} bytes")


def skip_tags(data: Buffer, position: int) -> int:
    """Return the position after a section of tagged fields that begins at ``position``."""
    return count_tags(data, position, 0)[1]


def count_tags(data: Buffer, position: int, before: int) -> tuple[int, int]:
    """Return ``before`` plus the number of tagged fields, and the position after them."""
    count, position = read_uvarint(data, position)
    before += count
    if before > KAFKA_PARTITIONS_MAX:
        raise TooManyEntries("tags", before, KAFKA_PARTITIONS_MAX)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
    return before, position


class Leader(Message, frozen=True, gc=False):
    leader_id: Annotated[int, "int32", "0+"] = -1
    epoch: Annotated[int, "int32", "0+"] = -1


class NodeEndpoint(Message, frozen=True, gc=False):
    node_id: Annotated[int, "int32", "0+"] = 0
    host: Annotated[str, "string", "0+"] = ""
    port: Annotated[int, "int32", "0+"] = 0
    rack: Annotated[str | None, "string", "0+", "null 0+"] = None


def malformed(what: str, error: Exception) -> Malformed:
    if isinstance(error, UnicodeDecodeError):
        return Malformed(f"{what} contains text that is not UTF-8: {error.reason}")
    return Malformed(f"{what} ends early")


def short() -> Malformed:
    return Malformed("the message ends early")


def absent(name: str) -> Malformed:
    return Malformed(f"{name} is null or has a negative length")
