"""A checkpoint of a lease cursor. It only makes a start faster, so it may be deleted.

    0       4          8
    magic   CRC-32     MessagePack array, the fields of Snapshot in order
    PCS1    of the rest

It holds the state of the fold. Times are durations, left or elapsed at the moment of writing,
because a monotonic clock has no meaning for the next process. Groups, due times and deduplication
are not included: the first two are read from the records, the last from the log's tail.

To change the layout: new fields at the end with a default, or a new magic. A reader that finds an
unknown magic reports damage, and the broker replays the log instead.
"""

import hashlib

import msgspec

from penstock.cursor.frames import framed, unframed

_MAGIC = b"PCS1"

# offset, lease_seq, attempts, first_leased_at_ms, is_changed, left_ms (-1: not leased), age_ms
EntryRow = tuple[int, int, int, int, bool, int, int]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    is_fifo: bool
    head: int
    next_offset: int
    appended_count: int
    passed_count: int
    next_lease_seq: int
    entries: list[EntryRow]
    acked_ahead: list[int]
    attempts: list[tuple[str, int, tuple[int, ...], int]]
    delays: list[tuple[int, int, int]]


_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode(snapshot: Snapshot) -> bytes:
    return framed(_MAGIC, snapshot)


def decode(data: bytes) -> Snapshot:
    """Decode a snapshot. Raises Damaged unless ``encode`` made exactly these bytes."""
    return unframed(data, _MAGIC, _decoder, "cursor snapshot")


def fingerprint(snapshot: Snapshot) -> bytes:
    """Return a hash of the state that all folds of one log share: everything but clocks and the
    delay counts, which a replica that reads only batch headers does not have."""
    value = (
        snapshot.is_fifo,
        snapshot.head,
        snapshot.next_offset,
        snapshot.appended_count,
        snapshot.passed_count,
        snapshot.next_lease_seq,
        [row[:5] for row in snapshot.entries],
        snapshot.acked_ahead,
        [row[:3] for row in snapshot.attempts],
    )
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=16).digest()
