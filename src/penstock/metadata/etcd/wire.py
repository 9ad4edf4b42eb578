"""Encoding and decoding of the few messages of etcd's API that the store needs, without I/O.

The code is written by hand, because a dozen messages do not justify a dependency on the compiler
and the library of protocol buffers (``docs/adr/0023-etcd-client.md``). In protocol buffers, fields
come in any order, unknown fields are skipped, and fields with their default value are not sent.
Field numbers are those of etcd 3 (``rpc.proto``, ``kv.proto``). Keys and values are bytes here.

    field    = tag, value         tag = number << 3 | kind, a varint
    kind 0   = varint             seven bits per byte, lowest first; ten bytes if negative
    kind 2   = length, bytes      strings, bytes, messages
    kinds 1 and 5, of eight and four bytes, are skipped: no field that is read here has them"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, ParamSpec, TypeVar

from penstock.metadata.store import StoreUnusable, Txn

P = ParamSpec("P")
T = TypeVar("T")

VARINT: Final = 0
BYTES: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_SHIFT_MAX: Final = 63  # a varint has at most ten bytes


class Stored(NamedTuple):
    """An etcd entry. If it was deleted, only ``key`` and ``version`` are set."""

    key: bytes
    value: bytes
    version: int
    create_revision: int


class Ranged(NamedTuple):
    revision: int
    entries: Sequence[Stored]
    is_more: bool


class TxnDone(NamedTuple):
    revision: int
    is_done: bool
    found: Sequence[Sequence[Stored]]  # if not done: the entry of each compared key, in order


class WatchAnswer(NamedTuple):
    revision: int
    watch_id: int  # negative in a reply to PROGRESS
    is_created: bool
    is_cancelled: bool
    compacted: int  # if not 0, history up to this revision is gone
    reason: str  # why the watch ended
    is_fragment: bool  # the next reply continues this one
    events: Sequence[tuple[bool, Stored]]  # True: a put, False: a delete


_SMALL: Final = tuple(bytes((number,)) for number in range(0x80))  # tags and most lengths


def varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SMALL[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF  # two's complement
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _int(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def encode_range(
    start: bytes, end: bytes = b"", *, limit: int = 0, revision: int = 0, is_keys_only: bool = False
) -> bytes:
    """Encode a linearizable read of one key, or of keys from ``start`` to ``end`` (exclusive)."""
    until = _bytes(2, end) if end else b""
    options = _int(3, limit) + _int(4, revision) + _int(8, is_keys_only)
    return _bytes(1, start) + until + options


def encode_txn(txn: Txn, name: Callable[[str], bytes]) -> bytes:
    """Encode a transaction. ``name`` converts a key to its full name in etcd. If a comparison
    fails, the reply contains all compared entries, which show the comparison that failed."""
    parts: list[bytes] = []
    for target, union, keys in ((2, 6, txn.compare), (1, 5, txn.compare_created)):  # MOD, CREATE
        for key, revision in keys:
            # The operator EQUAL is the default. A revision of 0 must be sent: it is in a union.
            expected = varint(union << 3) + varint(revision)
            parts.append(_bytes(1, _int(2, target) + _bytes(3, name(key)) + expected))
    for key, value in txn.puts:
        put = _bytes(1, name(key)) + _bytes(2, value) + _int(3, txn.lease)
        parts.append(_bytes(2, _bytes(2, put)))
    parts += (_bytes(2, _bytes(3, _bytes(1, name(key)))) for key in txn.deletes)
    for key, _ in (*txn.compare, *txn.compare_created):
        parts.append(_bytes(3, _bytes(1, encode_range(name(key), is_keys_only=True))))
    return b"".join(parts)


def encode_watch(start: bytes, end: bytes, *, from_revision: int) -> bytes:
    # Field 4, progress_notify: report the revision periodically; 8, fragment: split large replies
    options = _int(3, from_revision) + _int(4, 1) + _int(8, 1)
    return _bytes(1, _bytes(1, start) + _bytes(2, end) + options)


PROGRESS: Final = _bytes(3, b"")  # requests a progress notification from the stream of a watch


def encode_lease(number: int) -> bytes:
    """Encode a lease request. ``number`` is the TTL in seconds for a grant, else the lease id."""
    return _int(1, number)


def _read(decode: Callable[P, T]) -> Callable[P, T]:
    """Make a decoder raise StoreUnusable for bytes that are not a valid message."""

    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return decode(*args, **kwargs)
        except (IndexError, ValueError) as error:
            raise StoreUnusable(f"etcd sent an unreadable reply: {error}") from error

    return reading


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at + 1
        shift += 7
        if shift > _SHIFT_MAX:
            raise ValueError("a varint is too long")


def _signed(number: int) -> int:
    number &= 0xFFFF_FFFF_FFFF_FFFF
    return number - (1 << 64) if number >> 63 else number


def _end(data: bytes, at: int, length: int) -> int:
    end = at + length
    if end > len(data):
        raise ValueError("the message ends inside a field")
    return end


def fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (field number, integer, bytes) for each field. Only one of integer and bytes is set."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number, b""
        elif kind == BYTES:
            length, at = _varint(data, at)
            start, at = at, _end(data, at, length)
            yield tag >> 3, 0, data[start:at]
        elif kind in _FIXED_BYTES:
            at = _end(data, at, _FIXED_BYTES[kind])
        else:
            raise ValueError(f"the wire type {kind} is unknown")


def _parsed(data: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    numbers: dict[int, int] = {}
    parts: dict[int, list[bytes]] = {}
    for field, number, content in fields(data):
        numbers[field] = _signed(number)
        parts.setdefault(field, []).append(content)
    return numbers, parts


def _last(parts: Mapping[int, Sequence[bytes]], field: int) -> bytes:
    return parts[field][-1] if field in parts else b""


def _revision(parts: Mapping[int, Sequence[bytes]]) -> int:
    return _parsed(_last(parts, 1))[0].get(3, 0)


def _stored(data: bytes) -> Stored:
    """Decode an entry without calling ``fields``, which is too slow for large catalogs."""
    key = value = b""
    version = created = 0
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        at += 1
        if tag in (0x0A, 0x2A):  # key (1), value (5)
            length, at = _varint(data, at)
            start, at = at, _end(data, at, length)
            if tag == 0x0A:
                key = data[start:at]
            else:
                value = data[start:at]
        elif tag & 7 == VARINT and tag < 0x80:
            number, at = _varint(data, at)
            if tag == 0x18:  # mod_revision (3)
                version = number
            elif tag == 0x10:  # create_revision (2)
                created = number
        else:
            numbers, parts = _parsed(data)  # an entry with unknown fields
            return Stored(_last(parts, 1), _last(parts, 5), numbers.get(3, 0), numbers.get(2, 0))
    return Stored(key, value, version, created)


@_read
def decode_range(data: bytes) -> Ranged:
    numbers, parts = _parsed(data)
    return Ranged(_revision(parts), [*map(_stored, parts.get(2, ()))], bool(numbers.get(3)))


@_read
def decode_txn(data: bytes) -> TxnDone:
    numbers, parts = _parsed(data)
    ranges = (one for reply in parts.get(3, ()) for one in _parsed(reply)[1].get(1, ()))
    found = [decode_range(one).entries for one in ranges]
    return TxnDone(_revision(parts), bool(numbers.get(2)), found)


@_read
def decode_watch(data: bytes) -> WatchAnswer:
    numbers, parts = _parsed(data)
    return WatchAnswer(
        _revision(parts),
        watch_id=numbers.get(2, 0),
        is_created=bool(numbers.get(3)),
        is_cancelled=bool(numbers.get(4)),
        compacted=numbers.get(5, 0),
        reason=_last(parts, 6).decode("utf-8", "replace"),
        is_fragment=bool(numbers.get(7)),
        events=[_event(one) for one in parts.get(11, ())],
    )


def _event(data: bytes) -> tuple[bool, Stored]:
    numbers, parts = _parsed(data)
    if 2 not in parts:
        raise ValueError("an event has no key")
    return not numbers.get(1), _stored(parts[2][-1])


@_read
def decode_grant(data: bytes) -> int:
    return _parsed(data)[0].get(2, 0)


@_read
def decode_keep_alive(data: bytes) -> int:
    """Return the remaining seconds of the lease, or 0 if it has ended."""
    return _parsed(data)[0].get(3, 0)
