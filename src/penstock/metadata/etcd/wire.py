"""Encoding and decoding of the few messages of etcd's API that the store needs. Pure.

The messages are protocol buffers: fields of a number and a typed value, in any order; unknown
fields are skipped. Written by hand, because a dozen messages do not justify a compiler and a
run-time library with their versions: ``docs/adr/0023-etcd-client.md``. Field numbers are those of
etcd 3 (``rpc.proto``, ``kv.proto``); a field with its default value is not sent. Keys and values
are bytes here; ``store.py`` converts names and errors.

    field    = tag, value         tag = number << 3 | kind, a varint
    kind 0   = varint             seven bits per byte, lowest first; ten bytes if negative
    kind 2   = length, bytes      strings, bytes, messages
    kinds 1 and 5, eight and four bytes, are skipped: no field that is read here has them
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, ParamSpec, TypeVar

from penstock.metadata.store import StoreUnusable

P = ParamSpec("P")
T = TypeVar("T")

VARINT: Final = 0
BYTES: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_SHIFT_MAX: Final = 63  # a varint has at most ten bytes


class Stored(NamedTuple):
    """An entry; for a delete, its key and the revision of the delete."""

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
    found: Sequence[Sequence[Stored]]  # if not done: the entries of each compared key, in order


class WatchAnswer(NamedTuple):
    revision: int
    watch_id: int  # negative: a reply to PROGRESS, not of one watch
    is_created: bool
    is_cancelled: bool
    compacted: int  # not 0: history up to here is gone, and the watch has ended
    reason: str  # why the watch ended
    is_fragment: bool  # continued in the next reply
    events: Sequence[tuple[bool, Stored]]  # True: a put


# ── Writing ──────────────────────────────────────────────────────────────────────────────────


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
    start: bytes,
    end: bytes = b"",
    *,
    limit: int = 0,
    revision: int = 0,
    is_keys_only: bool = False,
) -> bytes:
    """Encode a linearizable read (``serializable``, 7, is not set), of one key without ``end``."""
    return b"".join(
        (
            _bytes(1, start),
            _bytes(2, end) if end else b"",
            _int(3, limit),
            _int(4, revision),
            _int(8, is_keys_only),
        )
    )


def encode_txn(
    *,
    compare: Sequence[tuple[bytes, int]],
    compare_created: Sequence[tuple[bytes, int]],
    puts: Sequence[tuple[bytes, bytes]],
    deletes: Sequence[bytes],
    lease: int,
) -> bytes:
    """Encode a transaction. If a comparison fails, it reads all compared keys, to find which."""
    parts: list[bytes] = []
    for target, union, keys in ((2, 6, compare), (1, 5, compare_created)):  # MOD, CREATE
        for key, revision in keys:
            # The result is EQUAL, the default. A revision of 0 must be sent: it is in a union.
            expected = varint(union << 3) + varint(revision)
            parts.append(_bytes(1, _int(2, target) + _bytes(3, key) + expected))
    for key, value in puts:
        put = _bytes(1, key) + _bytes(2, value) + _int(3, lease)
        parts.append(_bytes(2, _bytes(2, put)))
    parts += (_bytes(2, _bytes(3, _bytes(1, key))) for key in deletes)
    for key, _ in (*compare, *compare_created):
        parts.append(_bytes(3, _bytes(1, encode_range(key, is_keys_only=True))))
    return b"".join(parts)


def encode_watch(start: bytes, end: bytes, *, from_revision: int) -> bytes:
    create = b"".join(
        (
            _bytes(1, start),
            _bytes(2, end),
            _int(3, from_revision),
            _int(4, 1),  # progress_notify: report the revision periodically
            _int(8, 1),  # fragment: split large replies
        )
    )
    return _bytes(1, create)


PROGRESS: Final = _bytes(3, b"")  # requests a sign of life from a watch's stream


def encode_grant(ttl_seconds: int) -> bytes:
    return _int(1, ttl_seconds)


def encode_lease(lease: int) -> bytes:
    """Encode a request to keep a lease alive or to revoke it."""
    return _int(1, lease)


# ── Reading ──────────────────────────────────────────────────────────────────────────────────


def _read(decode: Callable[P, T]) -> Callable[P, T]:
    """Raise StoreUnusable for bytes that are not a valid message."""

    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return decode(*args, **kwargs)
        except (IndexError, ValueError) as error:
            raise StoreUnusable(f"etcd sent an unreadable reply: {error}") from error

    return reading


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number and the position after it."""
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
    """Yield number, varint and bytes of every field; one of the last two is 0 or empty."""
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
            raise ValueError(f"unknown wire type {kind}")


def _revision(header: bytes) -> int:
    return next((_signed(number) for field, number, _ in fields(header) if field == 3), 0)


def _stored(data: bytes) -> Stored:
    """Decode without the generator, for speed: catalogs have tens of thousands of entries."""
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
            return _stored_of_another_version(data)
    return Stored(key, value, version, created)


def _stored_of_another_version(data: bytes) -> Stored:
    """Decode an entry that has unknown fields."""
    key = value = b""
    revisions = {2: 0, 3: 0}
    for field, number, content in fields(data):
        if field == 1:
            key = content
        elif field == 5:
            value = content
        elif field in revisions:
            revisions[field] = number
    return Stored(key, value, revisions[3], revisions[2])


@_read
def decode_range(data: bytes) -> Ranged:
    revision, is_more = 0, False
    entries: list[Stored] = []
    for field, number, content in fields(data):
        if field == 2:
            entries.append(_stored(content))
        elif field == 1:
            revision = _revision(content)
        elif field == 3:
            is_more = bool(number)
    return Ranged(revision, entries, is_more)


@_read
def decode_txn(data: bytes) -> TxnDone:
    revision, is_done = 0, False
    found: list[Sequence[Stored]] = []
    for field, number, content in fields(data):
        if field == 1:
            revision = _revision(content)
        elif field == 2:
            is_done = bool(number)
        elif field == 3:
            found += (decode_range(op).entries for kind, _, op in fields(content) if kind == 1)
    return TxnDone(revision, is_done, found)


@_read
def decode_watch(data: bytes) -> WatchAnswer:
    numbers = dict.fromkeys((2, 3, 4, 5, 7), 0)
    revision, reason = 0, ""
    events: list[tuple[bool, Stored]] = []
    for field, number, content in fields(data):
        if field == 11:
            events.append(_event(content))
        elif field in numbers:
            numbers[field] = _signed(number)
        elif field == 1:
            revision = _revision(content)
        elif field == 6:
            reason = content.decode("utf-8", "replace")
    return WatchAnswer(
        revision,
        watch_id=numbers[2],
        is_created=bool(numbers[3]),
        is_cancelled=bool(numbers[4]),
        compacted=numbers[5],
        reason=reason,
        is_fragment=bool(numbers[7]),
        events=events,
    )


def _event(data: bytes) -> tuple[bool, Stored]:
    is_put, stored = True, None
    for field, number, content in fields(data):
        if field == 1:
            is_put = number == 0
        elif field == 2:
            stored = _stored(content)
    if stored is None:
        raise ValueError("an event has no key")
    return is_put, stored


@_read
def decode_grant(data: bytes) -> int:
    """Return the lease."""
    return next((_signed(number) for field, number, _ in fields(data) if field == 2), 0)


@_read
def decode_keep_alive(data: bytes) -> int:
    """Return the seconds that the lease lasts from now; 0 if it has ended."""
    return next((_signed(number) for field, number, _ in fields(data) if field == 3), 0)
